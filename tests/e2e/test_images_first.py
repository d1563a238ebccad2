"""BLIP-2, InstructBLIP and PaliGemma behind HTTP and gRPC against `transformers`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from export.pipeline.cli import export
from tests.e2e.conftest import Stack, running
from tests.e2e.interleaved import random_pictures
from tests.export.image_folders import KINDS, NEW_TOKENS, wanted, write
from triptych import Client, GrpcClient

pytestmark = [pytest.mark.integration, pytest.mark.full]

NAMES = {kind: kind.replace(" ", "-") for kind in KINDS}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Stack, dict[str, Any]]]:
    """The stack, and processor and model of each kind."""
    folder = tmp_path_factory.mktemp("images-first")
    originals = {kind: write(kind, folder / name) for kind, name in NAMES.items()}
    for name in NAMES.values():
        export(str(folder / name), repository=folder / "repository")
    with running(folder / "repository", folder) as stack:
        yield stack, originals


@pytest.mark.parametrize("kind", KINDS)
def test_answers_about_a_picture_are_those_of_transformers(
    kind: str, served: tuple[Stack, dict[str, Any]]
) -> None:
    stack, originals = served
    (picture,) = random_pictures(1)
    asked: Any = {"model": NAMES[kind], "max_new_tokens": NEW_TOKENS}
    with Client(stack.url) as client, GrpcClient(stack.grpc_address) as grpc:
        for beams in (1, 3):
            answer = wanted(*originals[kind], picture, "w9 w12", beams).strip()
            for each in (client, grpc):
                caption = each.caption(picture, prompt="w9 w12", num_beams=beams, **asked).data[0]
                assert (caption.text or "").removeprefix("w9 w12").strip() == answer
                continued = each.generate(
                    "<image>w9 w12", images=[picture], num_beams=beams, temperature=0, **asked
                ).data[0]
                assert (continued.text or "").strip() == answer
        answer = wanted(*originals[kind], picture, "w9 w12", 1).strip()
        parts = client.caption_stream(picture, prompt="w9 w12", **asked)
        streamed = "".join(part.text for part in parts if part.text)
    assert streamed.removeprefix("w9 w12").strip() == answer
