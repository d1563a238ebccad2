"""Every verb of the Makefile and every command of the README works on a fresh clone.

Each verb gets a clone of its own, so that none depends on another one's files. The clones use
this installation; `pip` is recorded and does nothing.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from examples.demo.server import free_port, wait_until_ready
from tests.programs import run_program
from triptych import __version__

ROOT = Path(__file__).parents[1]
MAKEFILE = (ROOT / "Makefile").read_text()
README = "\n".join((ROOT / page).read_text() for page in ("README.md", "docs/requests.md"))
"""Pages whose commands are run."""
VERBS = re.search(r"^\.PHONY: (.*)$", MAKEFILE, re.MULTILINE)[1].split()
ONE = "EXAMPLES=examples/checkpoints/example-es-en"
NOT_RUN = (
    *("git ", "make ", "pip ", "docker"),
    *("triptych export path/", "triptych serve", "triptych verify", "triptych train"),
    "triptych detect photo",
)
"""Commands of the README that fetch, install, or name what the reader has to fill in."""


@dataclass(frozen=True)
class Clone:
    """A fresh clone whose tools are those of this installation."""

    folder: Path
    tools: Path

    @property
    def environment(self) -> dict[str, str]:
        own = f"{self.folder}:{self.folder / 'clients'}"
        path = f"{self.tools}:{os.environ['PATH']}"
        return {**os.environ, "PATH": path, "PYTHONPATH": own, "PYTHONDONTWRITEBYTECODE": "1"}

    def make(self, *arguments: str, timeout_s: float = 600) -> str:
        """What it prints; an exit code other than 0 fails the test."""
        return run_program(
            *("make", f"BIN={self.tools}", *arguments),
            cwd=self.folder,
            env=self.environment,
            timeout_s=timeout_s,
            with_errors=True,
        )

    def changes(self) -> str:
        """What git finds changed or new, ignored files apart."""
        command = ["git", "status", "--porcelain"]
        return subprocess.check_output(command, cwd=self.folder, text=True)


@pytest.fixture
def clone(tmp_path: Path) -> Clone:
    folder, tools = tmp_path / "clone", tmp_path / "tools"
    command = ["git", "clone", "--quiet", "--no-hardlinks", str(ROOT), str(folder)]
    subprocess.run(command, check=True)
    tools.mkdir()
    installed = Path(sys.executable).parent
    for tool in ("python", "pytest", "ruff", "mypy", "lint-imports", "triptych"):
        write_script(tools / tool, f'exec "{installed / tool}" "$@"')
    write_script(tools / "pip", f'echo "$@" >> "{tmp_path}/pip.log"')
    (folder / ".venv").mkdir()
    os.utime(folder / "pyproject.toml", (0, 0))
    (folder / ".venv" / "installed").touch()
    return Clone(folder, tools)


def write_script(path: Path, line: str) -> None:
    path.write_text(f"#!/bin/sh\n{line}\n")
    path.chmod(0o755)


@contextmanager
def serving(clone: Clone, *arguments: str) -> Iterator[str]:
    """`triptych serve` in a clone; its URL."""
    port, grpc_port = free_port(), free_port()
    command = ["triptych", "serve", "--http-port", str(port), "--grpc-port", str(grpc_port)]
    url = f"http://127.0.0.1:{port}"
    with (clone.folder.parent / "serve.log").open("w+b") as log:
        program = [str(clone.tools / command[0]), *command[1:], *arguments]
        process = subprocess.Popen(
            program, cwd=clone.folder, env=clone.environment, stdout=log, stderr=log
        )
        try:
            wait_until_ready(url, process, log)
            yield url
        finally:
            process.send_signal(signal.SIGINT)
            assert process.wait(timeout=60) in (0, 130, -signal.SIGINT)


def test_help_lists_every_verb() -> None:
    shown = subprocess.check_output(["make", "help"], cwd=ROOT, text=True)
    assert re.findall(r"^  make (\S+)", shown, re.MULTILINE) == sorted(
        set(VERBS), key=lambda verb: MAKEFILE.index(f"\n{verb}:")
    )


@pytest.mark.parametrize("verb", VERBS)
def test_verb_can_be_expanded(verb: str) -> None:
    subprocess.run(["make", "-n", verb], cwd=ROOT, check=True, capture_output=True)


class TestStrangePath:
    """Verbs in a checkout, and on a repository, whose paths have blanks, quotes and `$`."""

    @pytest.fixture
    def checkout(self, tmp_path: Path) -> Path:
        """Tools append `$SKIPPED_TESTS` and their arguments, one a line, to a file `calls`."""
        folder = tmp_path / "mein 'projekt' é $HOME; \"b\""
        tools = folder / ".venv" / "bin"
        tools.mkdir(parents=True)
        shutil.copy(ROOT / "Makefile", folder)
        (folder / "requirements").mkdir()
        (folder / "requirements" / "dev.txt").touch()
        (tools.parent / "installed").touch()
        (folder / "tests").mkdir()
        record = f"""printf '%s\\n' "$SKIPPED_TESTS" "$@" >> '{tmp_path}/calls'"""
        for tool in ("python", "pytest", "triptych"):
            write_script(tools / tool, record)
        return folder

    def make(self, checkout: Path, *arguments: str, **environment: str) -> list[str]:
        """What the tools were called with."""
        subprocess.run(
            ["make", *arguments],
            cwd=checkout,
            env=os.environ | environment,
            check=True,
            capture_output=True,
        )
        return (checkout.parent / "calls").read_text().splitlines()

    @pytest.mark.parametrize("verb", ["demo", "serve", "export", "quality", "fuzz"])
    def test_repository_is_one_argument(self, checkout: Path, verb: str) -> None:
        repository = str(checkout / "a b")
        called = self.make(checkout, verb, REPOSITORY=repository)
        assert called[called.index("--repository") + 1] == repository

    def test_clean_removes_versions_of_the_repository_alone(self, checkout: Path) -> None:
        inside, outside = checkout / "a b" / "model" / "1", checkout / "a" / "model" / "1"
        for folder in (inside, outside):
            folder.mkdir(parents=True)
        (checkout.parent / "calls").touch()
        self.make(checkout, "clean", REPOSITORY=str(checkout / "a b"))
        assert not inside.exists()
        assert outside.exists()

    def test_list_of_skipped_tests_is_in_the_checkout(self, checkout: Path) -> None:
        (checkout / ".skipped-tests").touch()
        called = self.make(checkout, "test")
        assert called.count(str(checkout / ".skipped-tests")) == 3
        assert not (checkout / ".skipped-tests").exists()


def test_readme_names_only_verbs_that_exist() -> None:
    assert set(re.findall(r"`make (\S+?)[` ]", README)) <= set(VERBS)


@pytest.mark.full
@pytest.mark.integration
class TestFreshClone:
    def test_check(self, clone: Clone) -> None:
        assert "Success" in clone.make("check")

    def test_proto_changes_nothing(self, clone: Clone) -> None:
        clone.make("proto")
        assert clone.changes() == ""

    def test_export_then_again_then_clean(self, clone: Clone) -> None:
        clone.make("export", ONE)
        version = clone.folder / "model_repository" / "example-es-en" / "1"
        assert (version / "bundle.json").is_file()
        assert clone.changes() == ""
        clone.make("export", ONE)
        clone.make("clean")
        assert not version.exists()
        assert clone.changes() == ""

    def test_demo(self, clone: Clone) -> None:
        assert "POST /v1/translate" in clone.make("demo", timeout_s=1200)

    def test_release(self, clone: Clone) -> None:
        try:
            clone.make("release", f"PYTHON={sys.executable}", timeout_s=1200)
        except AssertionError as error:
            if re.search("No matching distribution|Could not find a version", str(error)):
                pytest.skip("no package index can be reached")
            raise
        built = sorted(path.name for path in (clone.folder / "dist").iterdir())
        images = ("gateway", "storage", "triton", "triton-gpu")
        assert built == sorted([
            *(f"triptych-{image}-{__version__}.cdx.json" for image in images),
            *(f"triptych-{__version__}-py3-none-any.whl", f"triptych-{__version__}.tar.gz"),
            "SHA256SUMS",
        ])  # fmt: skip
        assert clone.changes() == ""

    def test_bench(self, clone: Clone, tmp_path: Path) -> None:
        flags = "--models example-es-en --batches 1 --beams 1 --rounds 1"
        flags += f" --only 'triptych fp32' --output {tmp_path / 'results'}"
        clone.make("bench", f"BENCH={flags}")
        assert json.loads((tmp_path / "results" / "speed.json").read_text())["rows"]
        assert "requirements/dev+bench.txt" in (tmp_path / "pip.log").read_text()

    def test_load(self, clone: Clone) -> None:
        clone.make("export", ONE)
        with serving(clone) as url:
            shown = clone.make("load", f"TRIPTYCH_URL={url}", "TASKS=translate", "DURATION=3s")
        assert "translate" in shown

    def test_serve_ends_with_an_interrupt(self, clone: Clone) -> None:
        clone.make("export", ONE)
        process = subprocess.Popen(
            ["make", f"BIN={clone.tools}", "serve", ONE],
            cwd=clone.folder,
            env=clone.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )
        assert process.stdout is not None
        with process.stdout as lines:
            assert any("ready at" in line for line in lines)
            os.killpg(process.pid, signal.SIGINT)
            process.wait(timeout=60)

    def test_up_and_down_run_compose(self, clone: Clone, tmp_path: Path) -> None:
        write_script(clone.tools / "docker", f'echo "$REPOSITORY $@" >> "{tmp_path}/docker.log"')
        clone.make("up", ONE)
        clone.make("down")
        calls = (tmp_path / "docker.log").read_text()
        assert f"{clone.folder}/model_repository compose -f" in calls
        assert re.findall(r" build .* --target (\w+) ", calls) == ["triton", "gateway"]
        assert "compose.yaml up --detach --no-build --wait" in calls
        assert re.search("compose.yaml .*down --remove-orphans", calls)

    def test_commands_of_the_readme(self, clone: Clone) -> None:
        clone.make("export", timeout_s=1200)
        desk = clone.folder  # with a model repository, where bulk work finds its models
        pq.write_table(pa.table({"text": ["One.", "Two."]}), desk / "docs.parquet")
        shutil.copy(ROOT / "examples/demo/pictures/scene-1.png", desk / "picture.png")
        for name in ("in.txt", "texts.txt"):
            (desk / name).write_text("El mundo no es suficiente.\n")
        with serving(clone) as url:
            for language, block in blocks(README):
                for command in commands(language, block):
                    run(clone, desk, url, command)
        assert (desk / "out.txt").read_text().strip()
        assert (desk / "texts.npy").stat().st_size > 128
        [part] = (desk / "vectors").glob("part-*.jsonl")
        assert len(part.read_text().splitlines()) == 2


def blocks(page: str) -> list[tuple[str, str]]:
    """Language and text of the fenced blocks that hold commands or Python."""
    return re.findall(r"^```(bash|sh|python)\n(.*?)^```", page, re.MULTILINE | re.DOTALL)


def commands(language: str, block: str) -> list[str]:
    if language == "python":
        return [f"python -c {shlex.quote(block)}"]
    lines = block.replace("\\\n", " ").splitlines()
    return [line for line in lines if line.strip() and not line.startswith((*NOT_RUN, "#"))]


def run(clone: Clone, desk: Path, url: str, command: str) -> None:
    """A command of the README, at the address of the service under test."""
    command = command.replace("http://127.0.0.1:8080", url).replace("localhost:8080", url)
    command = re.sub(
        r"^curl ", "curl --silent --show-error --fail-with-body --noproxy '*' ", command
    )
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=desk,
        env={**clone.environment, "TRIPTYCH_URL": url},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"


def test_blocks_of_the_readme_are_found() -> None:
    found = [command for block in blocks(README) for command in commands(*block)]
    assert sum(command.startswith("curl ") for command in found) >= 3
    assert sum(command.startswith("triptych ") for command in found) >= 3
    assert sum(command.startswith("python ") for command in found) >= 1
