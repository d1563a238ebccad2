"""What `make test` did not run: the last lines that it prints.

`tests/conftest.py` adds the skipped tests of each run of pytest to the file that `$SKIPPED_TESTS`
names; `python -m tests.skipped FILE` sums them up, states the kinds of processors that were not
covered, and removes the file.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from inference.process_limits import KINDS, processor_kind

VARIABLE = "SKIPPED_TESTS"
_PREFIX = "Skipped: "


def record_skips(file: Path, reasons: Sequence[str]) -> None:
    """Add one line for each skipped test.

    Args:
        file: Created if it is missing.
        reasons: As pytest reports them.
    """
    lines = (" ".join(reason.removeprefix(_PREFIX).split()) for reason in reasons)
    with file.open("a", encoding="utf-8") as opened:
        opened.writelines(f"{line}\n" for line in lines)


def describe_skips(file: Path) -> str:
    """One line: how many tests were skipped, why, and how to run them."""
    lines = file.read_text(encoding="utf-8").splitlines() if file.is_file() else []
    if not lines:
        return "no test was skipped; slower ones: make test-all"
    reasons = "; ".join(f"{count} × {reason}" for reason, count in Counter(lines).most_common())
    return (
        f"{len(lines)} tests were SKIPPED: {reasons}. Install what is missing and run make test "
        "again; slower ones: make test-all"
    )


def describe_processor() -> str:
    """One line: the kind of processor that tests ran on, and those that no test ran on.

    `make test-avx2` emulates AVX2, on x86 alone.
    """
    kind = processor_kind()
    others = [other for other in KINDS if other != kind]
    if kind in KINDS and "AVX2" in others:
        others.remove("AVX2")
        others[-1] += "; AVX2 by make test-avx2"
    return f"ran on {kind}; not covered: {', '.join(others)}"


if __name__ == "__main__":
    print(describe_skips(Path(sys.argv[1])))
    print(describe_processor())
    Path(sys.argv[1]).unlink(missing_ok=True)
