"""The tutorials work as written: a reader who follows them ends with a tested, served model."""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from examples.demo.server import free_port, stop, wait_until_ready
from tests.docs.tutorials import ROOT, Copy, read

PAGES = ROOT / "docs" / "tutorials"


WITH_GRAPHS = {
    *("test_generate_parity.py", "test_prompt_reading.py", "test_torch_runner.py"),
    *("test_to_onnx.py", "test_quantize.py", "test_quantize_cache.py"),
}
"""Tests whose graphs are exported for each architecture; `triptych export` follows."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("marks", "less"),
    [("not slow and not full", WITH_GRAPHS), pytest.param("not full", {}, marks=pytest.mark.full)],
    ids=["networks", "graphs"],
)
def test_architecture_is_one_file_and_one_line(marks: str, less: set[str], tmp_path: Path) -> None:
    """Its tests run on every part of the exporter that is parametrised over the registry."""
    tutorial, copy = read(PAGES / "architecture.md"), Copy(tmp_path)
    assert copy.write(tutorial) == {
        "export/models/decoders/gptj.py",
        "tests/export/twins/gptj.py",
    }
    assert [path.name for path, _ in tutorial.files].count("registry.py") == 1
    tests, exported, served = tutorial.commands
    passed = re.findall(r"^PASSED (\S+?)::", copy.run(f"{tests.strip()} -rA -m '{marks}'"), re.M)
    assert {Path(path).name for path in passed} | set(less) >= {
        "test_twins.py",
        "test_planted_faults.py",
        "test_generate_parity.py",
        "test_prompt_reading.py",
        "test_torch_runner.py",
        "test_to_onnx.py",
        "test_quantize.py",
        "test_quantize_cache.py",
        "test_triton_config.py",
        "test_preprocessing.py",
    }
    copy.run(exported)
    assert list((tmp_path / "my-repository").rglob("bundle.json"))
    assert served.startswith("triptych serve")


@contextmanager
def served(copy: Copy, command: str) -> Iterator[str]:
    """The tutorial's server on free ports, as long as the block runs; yields its URL."""
    port = free_port()
    arguments = f"{command.strip()} --http-port {port} --grpc-port 0"
    with tempfile.TemporaryFile() as log:
        server = subprocess.Popen(
            ["bash", "-c", f"exec {arguments}"],
            cwd=copy.folder,
            env=copy.environment,
            stdout=log,
            stderr=log,
        )
        try:
            wait_until_ready(f"http://127.0.0.1:{port}", server, log)
            yield f"http://127.0.0.1:{port}"
        finally:
            stop(server)


@pytest.mark.integration
def test_task_is_two_files(tmp_path: Path) -> None:
    """Its route, its command and its OpenAPI are served without a further change."""
    tutorial, copy = read(PAGES / "task.md"), Copy(tmp_path)
    assert copy.write(tutorial) == {
        "clients/triptych/tasks/similarity.py",
        "inference/tasks/similarity.py",
        "tests/inference/tasks/test_similarity.py",
    }
    written, exported, serve, calls = tutorial.commands
    assert " passed" in copy.run(written)
    copy.run(exported)
    with served(copy, serve) as url:
        command, _, curl = calls.partition("curl ")
        printed = copy.run(f"{command.strip()} --url {url}").split()
        address = url.removeprefix("http://")
        body = json.loads(copy.run(f"curl -s {curl.replace('localhost:8080', address)}"))
    ring, bus = map(float, printed)
    assert body["data"][0]["scores"] == pytest.approx([ring, bus], abs=1e-4)
    assert ring > bus
