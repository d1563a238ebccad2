"""What does not depend on the process: hashes of texts are seeded by it."""

import subprocess
import sys


def printed(program: str) -> list[str]:
    """The lines that a Python program prints in a process of its own."""
    environment = {"PYTHONHASHSEED": "12345", "PYTHONIOENCODING": "utf-8"}
    command = [sys.executable, "-c", program]
    ended = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    return ended.stdout.splitlines()
