"""Generated Python as the formatter of the project would have it."""

from __future__ import annotations

import subprocess
import sys


def formatted(code: str, name: str) -> str:
    """`code` with sorted imports and formatted lines.

    Args:
        name: Path of the file that it will be, for the settings that apply to it.

    Raises:
        RuntimeError: It is not valid Python.
    """
    fixed = _ruff("check", "--quiet", "--fix-only", "--select=I,F401", name=name, code=code)
    return _ruff("format", "--quiet", name=name, code=fixed)


def _ruff(*arguments: str, name: str, code: str) -> str:
    command = [sys.executable, "-m", "ruff", *arguments, f"--stdin-filename={name}", "-"]
    result = subprocess.run(command, input=code, capture_output=True, text=True, check=False)
    if result.returncode:
        raise RuntimeError(f"ruff: {result.stderr.strip()}")
    return result.stdout
