"""Whether a Triton stub runs on the packages that it was installed with."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np


def assert_interpreter() -> None:
    """A stub that took its packages from another Python answers empty tensors without an error."""
    assert np.__version__.startswith("1."), f"numpy {np.__version__}: Triton's stub needs numpy 1"
    home = Path(sys.prefix).resolve()
    assert Path(np.__file__).resolve().is_relative_to(home), f"numpy is not from {home}"
