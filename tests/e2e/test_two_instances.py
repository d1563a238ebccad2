"""A bundle that `--runtime auto` gave two instances, served by a real Triton.

Auto chooses two only with four cores or more, so that choice is made by the test; everything else
is the real export, server and gateway.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import export.pipeline.build
from export.pipeline.cli import export as export_checkpoint
from export.precision import Precision, Runtime
from export.targets.instance_config import Placed
from inference.bundle.manifest import Placement
from inference.bundle.reader import newest_bundle
from serving.triton.stubs import running_stubs
from tests.e2e.conftest import CHECKPOINTS, Stack, running
from tests.serving.triton.tiny import wait_until
from triptych import Client

pytestmark = [pytest.mark.integration, pytest.mark.full]

MODEL = "example-bert-embed"
TEXTS = [f"Ana bought {count} red lamps in Rome" for count in range(2, 66)]
TWO = Placement(instances=2, threads=1)


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    folder = tmp_path_factory.mktemp("two")
    repository = folder / "model_repository"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(export.pipeline.build, "choose_placement", lambda bundle: Placed(TWO, {}))
        export_checkpoint(
            str(CHECKPOINTS / MODEL),
            repository=repository,
            precision=Precision.FP32,
            runtime=Runtime.AUTO,
        )
    assert newest_bundle(repository, MODEL).manifest.placement == TWO
    with running(repository, folder) as started:
        yield started


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / 100


def test_both_instances_answer_and_agree(stack: Stack) -> None:
    server = next(
        int(folder.name)
        for folder in Path("/proc").iterdir()
        if folder.name.isdigit() and is_server_of(folder, stack.repository)
    )
    (stubs,) = running_stubs(server).values()
    assert len(stubs) == 2
    before = {pid: cpu_seconds(pid) for pid in stubs}
    with Client(stack.url, timeout=60) as client:
        alone = [client.embed(text).data[0].embedding for text in TEXTS[:4]]

        def embedded(number: int) -> None:
            found = client.embed(TEXTS[number % len(TEXTS)]).data[0].embedding
            if number % len(TEXTS) < 4:
                np.testing.assert_allclose(found, alone[number % len(TEXTS)], atol=1e-6)

        with ThreadPoolExecutor(16) as pool:
            wait_until(
                lambda: (
                    [*pool.map(embedded, range(256))] != []
                    and all(cpu_seconds(pid) > before[pid] for pid in stubs)
                )
            )


def is_server_of(folder: Path, repository: Path) -> bool:
    try:
        arguments = (folder / "cmdline").read_bytes().decode().split("\0")
    except OSError:  # ended meanwhile
        return False
    program = Path(arguments[0]).name
    return program == "tritonserver" and any(str(repository) in word for word in arguments)
