"""A release: one version everywhere, the wheel and the sdist as built and installed."""

from __future__ import annotations

import os
import re
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

from codegen.__main__ import deployment_files
from codegen.pages import with_version
from tests.programs import run_program
from triptych import __version__

ROOT = Path(__file__).parents[1]
PLACE = "clients/triptych/__init__.py"
"""The one file that states the version."""
STATED = re.compile(rf"(?<![\w.=~<>-]){re.escape(__version__)}(?![-\w]|\.\w)")
IMAGE = re.compile(r"(?:image: |_IMAGE:-|-t )(?:\S*/)?triptych-[a-z-]+(?::(?P<tag>[\w.-]+))?")


def tracked_texts() -> dict[str, str]:
    """Tracked file → its text, apart from those that are not UTF-8."""
    names = run("git", "ls-files", "-z").split("\0")
    texts = {}
    for name in filter(None, names):
        try:
            texts[name] = (ROOT / name).read_text(encoding="utf-8")
        except (UnicodeDecodeError, IsADirectoryError, FileNotFoundError):
            continue
    return texts


def test_version_is_stated_in_one_place_or_generated_from_it() -> None:
    generated = {str(path.relative_to(ROOT)) for path in deployment_files()}
    stating = []
    for name, text in tracked_texts().items():
        if name in generated or (name.startswith("docs/") and name.endswith(".md")):
            text = with_version(text, "OTHER")
        if STATED.search(text):
            stating.append(name)
    assert sorted(stating) == ["CHANGELOG.md", PLACE]


def test_every_image_of_ours_has_the_version_as_its_tag() -> None:
    named = {
        (str(path.relative_to(ROOT)), found["tag"])
        for path in deployment_files()
        for found in IMAGE.finditer(path.read_text(encoding="utf-8"))
    }
    assert len(named) >= 10
    assert {tag for _, tag in named} == {__version__}, named


def test_newest_release_of_the_changelog_is_this_version() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    releases = re.findall(r"^## (\S+)(?: - (\d{4}-\d{2}-\d{2}))?$", text, re.MULTILINE)
    newest, date = next(release for release in releases if release[0] != "Unreleased")
    assert newest == __version__
    assert date


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and the sdist."""
    folder = tmp_path_factory.mktemp("built")
    run(sys.executable, "-m", "hatchling", "build", "-d", str(folder))
    return folder


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    (wheel,) = built.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def sdist(built: Path) -> Path:
    (sdist,) = built.glob("*.tar.gz")
    return sdist


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


def run(*command: str, folder: Path = ROOT) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return run_program(*command, cwd=folder, env=environment)


@pytest.mark.slow
def test_wheel_has_neither_examples_nor_tests(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    packages = {name.split("/")[0] for name in names if ".dist-info/" not in name}
    assert packages == {"export", "inference", "serving", "triptych"}
    assert not [name for name in names if name.endswith((".safetensors", ".spm"))]
    assert wheel.name == f"triptych-{__version__}-py3-none-any.whl"


@pytest.mark.slow
def test_sdist_builds_the_same_wheel(sdist: Path, wheel: Path, tmp_path: Path) -> None:
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    (folder,) = tmp_path.iterdir()
    assert {path.name for path in folder.iterdir() if path.is_dir()} == {
        *("clients", "export", "inference", "serving")
    }
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", "out", folder=folder)
    (again,) = (folder / "out").iterdir()
    assert again.read_bytes() == wheel.read_bytes()


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


@pytest.mark.slow
def test_installed_commands_start_without_the_repository(program: Path) -> None:
    assert "Usage: triptych" in run(str(program), "--help")
    assert run(str(program), "--version") == f"triptych {__version__}\n"
    run(str(program.with_name("python")), "-P", "-c", HELP, *COMMANDS)


@pytest.mark.slow
def test_installed_program_runs_the_wheels_modules(program: Path) -> None:
    python = str(program.with_name("python"))
    code = "import importlib.util as u, export; print(u.find_spec('examples'), export.__path__[0])"
    absent, _, path = run(python, "-P", "-c", code).strip().partition(" ")
    assert absent == "None"
    assert Path(path).is_relative_to(program.parents[1])
