"""Perceivers behind HTTP and gRPC answer as the pipelines of `transformers`.

The checkpoints are random, with the tokenizer and the image processor of their own class.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from export.models.encoders.perceiver import CONVOLVED
from tests.e2e.conftest import PROGRAM, Stack, running
from tests.export.models.test_perceiver import (
    MASKED,
    TEXTS,
    assert_classes,
    assert_masks,
    picture,
    reference,
    write,
)
from tests.pictures import encoded
from triptych import Client
from triptych.client.grpc_client import GrpcClient

pytestmark = [pytest.mark.integration, pytest.mark.full]

FOLDERS = {"bytes": MASKED, "scenes": CONVOLVED}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made: Path = tmp_path_factory.mktemp("perceiver")
    return made


@pytest.fixture(scope="module")
def served(home: Path) -> Iterator[Stack]:
    for name, kind in FOLDERS.items():
        folder = write(home / name, kind)
        command = [*PROGRAM, "export", str(folder), "--repository", str(home / "repository")]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    with running(home / "repository", home) as stack:
        yield stack


@pytest.mark.filterwarnings("ignore")
def test_served_bytes_are_those_of_the_pipeline(served: Stack, home: Path) -> None:
    theirs = reference(home / "bytes", MASKED)
    texts = [text for text in TEXTS if "[MASK]" in text]
    expected = [theirs(text, top_k=5) for text in texts]
    with Client(served.url) as http, GrpcClient(served.grpc_address) as grpc:
        for client in (http, grpc):
            answer = client.fill_mask(texts, model="bytes", top_k=5)
            for item, wanted in zip(answer.data, expected, strict=True):
                assert_masks(item, wanted)


def test_served_classes_are_those_of_the_pipeline(served: Stack, home: Path) -> None:
    theirs = reference(home / "scenes", CONVOLVED)
    pictures = [picture(seed) for seed in range(3)]
    files = list(map(encoded, pictures))
    with Client(served.url) as http, GrpcClient(served.grpc_address) as grpc:
        for client in (http, grpc):
            answer = client.classify(images=files, model="scenes", top_k=3)
            for item, image in zip(answer.data, pictures, strict=True):
                assert_classes(item, theirs(image, top_k=3))
