"""The wheel, built and installed: its packages, and commands that need no others."""

from __future__ import annotations

import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder))
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def program(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`triptych` of an environment with the wheel and, behind it, what this environment has.

    `.pth` files of the folders behind are not read, so that no editable installation is found.
    """
    folder = tmp_path_factory.mktemp("installed")
    venv.create(folder, with_pip=False)
    (packages,) = folder.glob("lib/python*/site-packages")
    behind = [path for path in sys.path if path.endswith("site-packages")]
    (packages / "behind.pth").write_text("\n".join(behind))
    python = str(folder / "bin" / "python")
    run(sys.executable, "-m", "uv", "pip", "install", "--offline", "--no-deps",
        "--python", python, str(wheel))  # fmt: skip
    return folder / "bin" / "triptych"


def run(*command: str) -> str:
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_wheel_has_neither_examples_nor_tests(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    packages = {name.split("/")[0] for name in names if ".dist-info/" not in name}
    assert packages == {"export", "inference", "serving", "triptych"}
    assert not [name for name in names if name.endswith((".safetensors", ".spm"))]


COMMANDS = ("train", "train translate", "train caption", "export", "serve", "verify")
HELP = """
import contextlib, importlib.metadata as metadata, io, sys
(script,) = metadata.entry_points(group="console_scripts", name="triptych")
main = script.load()
for command in sys.argv[1:]:
    sys.argv = ["triptych", *command.split(), "--help"]
    with contextlib.redirect_stdout(io.StringIO()) as printed, contextlib.suppress(SystemExit):
        main()
    assert f"Usage: triptych {command}" in printed.getvalue(), command
"""
"""The help of each command, all in one process: loading torch takes seconds."""


def test_installed_commands_start_without_the_repository(program: Path) -> None:
    assert "Usage: triptych" in run(str(program), "--help")
    run(str(program.with_name("python")), "-P", "-c", HELP, *COMMANDS)


def test_installed_program_runs_the_wheels_modules(program: Path) -> None:
    python = str(program.with_name("python"))
    code = "import importlib.util as u, export; print(u.find_spec('examples'), export.__path__[0])"
    absent, _, path = run(python, "-P", "-c", code).strip().partition(" ")
    assert absent == "None"
    assert Path(path).is_relative_to(program.parents[1])
