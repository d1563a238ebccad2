"""The tutorials work as written.

A fenced block with `title=PATH` is (a part of) that file: the first block of a new file creates it,
later ones are appended. Of a file that exists, such as the registry, a block holds lines that
belong in front of the closing line of its first top-level table. Blocks in `bash` are commands.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from examples.demo.server import free_port, stop, wait_until_ready
from tests.programs import run_program

ROOT = Path(__file__).parents[2]
COPIED = (
    "benchmarks",
    "clients",
    "examples",
    "export",
    "inference",
    "serving",
    "tests",
    "pyproject.toml",
)
_BLOCK = re.compile(r"^```(\w+)(?: title=(\S+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Tutorial:
    """The blocks of a page, in order.

    Attributes:
        files: Path and content of each block that has a title.
        commands: The blocks in `bash`.
    """

    files: tuple[tuple[Path, str], ...]
    commands: tuple[str, ...]


def read(page: Path) -> Tutorial:
    """The blocks of a page of documentation."""
    blocks = _BLOCK.findall(page.read_text(encoding="utf-8"))
    return Tutorial(
        tuple((Path(title), content) for _, title, content in blocks if title),
        tuple(content for kind, title, content in blocks if kind == "bash" and not title),
    )


class Copy:
    """A copy of the repository's code, into which a tutorial writes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        unneeded = shutil.ignore_patterns(".*", "checkpoints", "results")  # compiled files are used
        for name in COPIED:
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, folder / name, ignore=unneeded)
            else:
                shutil.copy(ROOT / name, folder / name)
        checkpoints = Path("examples/checkpoints")
        (folder / checkpoints).symlink_to(ROOT / checkpoints)

    def write(self, tutorial: Tutorial) -> set[str]:
        """Writes the tutorial's files; returns the new ones."""
        new: set[str] = set()
        for path, content in tutorial.files:
            target = self.folder / path
            if not target.exists() or str(path) in new:
                new.add(str(path))
                target.parent.mkdir(parents=True, exist_ok=True)
                with target.open("a", encoding="utf-8") as file:
                    file.write(content)
            else:
                text = target.read_text(encoding="utf-8")
                assert "\n}\n" in text, f"{path} has no table"
                target.write_text(text.replace("\n}\n", f"\n{content}}}\n", 1), encoding="utf-8")
        return new

    @property
    def environment(self) -> dict[str, str]:
        """The copy's packages come before those of an editable installation."""
        code = os.pathsep.join([str(self.folder), str(self.folder / "clients")])
        binaries = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        return {**os.environ, "PYTHONPATH": code, "PATH": binaries}

    def run(self, command: str, timeout_s: float = 300) -> str:
        """Runs a block of commands in the copy; returns what it printed.

        Raises:
            AssertionError: it failed; with the end of its output.
        """
        return run_program(
            *("bash", "-e", "-c", command),
            cwd=self.folder,
            env=self.environment,
            timeout_s=timeout_s,
            with_errors=True,
        )


PAGES = ROOT / "docs" / "tutorials"


WITH_GRAPHS = {
    *("test_generate_parity.py", "test_prompt_reading.py", "test_torch_runner.py"),
    *("test_graphs.py", "test_quantize.py", "test_quantize_cache.py"),
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
    assert copy.write(tutorial) == {"export/models/decoders/gptj.py", "tests/export/twins/gptj.py"}
    assert [path.name for path, _ in tutorial.files].count("registry.py") == 1
    tests, exported, served = tutorial.commands
    passed = re.findall(r"^PASSED (\S+?)::", copy.run(f"{tests.strip()} -rA -m '{marks}'"), re.M)
    assert {Path(path).name for path in passed} | set(less) >= {
        "test_twins.py",
        "test_planted_faults.py",
        "test_generate_parity.py",
        "test_prompt_reading.py",
        "test_torch_runner.py",
        "test_graphs.py",
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
