"""Follows a tutorial: writes its files into a copy of the repository and runs its commands.

A fenced block with `title=PATH` is (a part of) that file: the first block of a new file creates it,
later ones are appended. Of a file that exists, such as the registry, a block holds lines that
belong in front of the closing line of its first top-level table. Blocks in `bash` are commands.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

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
        done = subprocess.run(
            ["bash", "-e", "-c", command],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        output = done.stdout + done.stderr
        assert done.returncode == 0, f"{command}\n{output[-4000:]}"
        return output
