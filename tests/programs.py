"""Programs that tests run to their end."""

import subprocess
import sys
from pathlib import Path
from typing import Any


def run_program(
    *command: str | Path, timeout_s: float = 120, with_errors: bool = False, **options: Any
) -> str:
    """Runs a program; returns what it printed.

    Args:
        with_errors: Return what it printed on stderr, too.
        options: Those of `subprocess.run`.

    Raises:
        AssertionError: it failed; with the end of all that it printed.
    """
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=timeout_s, check=False, **options
    )
    assert done.returncode == 0, f"{command}\n{(done.stdout + done.stderr)[-8000:]}"
    return done.stdout + done.stderr if with_errors else done.stdout


def run_with_other_hashes(program: str) -> list[str]:
    """Runs a Python program in which texts have other hashes; returns the lines that it printed."""
    environment = {"PYTHONHASHSEED": "12345", "PYTHONIOENCODING": "utf-8"}
    return run_program(sys.executable, "-c", program, env=environment).splitlines()
