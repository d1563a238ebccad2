"""The results as lines and as the table of the page beside this file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tests.attack.case import CASES
from tests.attack.measure import Result

PAGE = Path(__file__).parent / "README.md"
_HEAD = """| attack | what is sent | slowest health check, translation, image | memory | answers |
|---|---|---|---|---|"""


def line(result: Result) -> str:
    """One result, for the terminal."""
    problems = "".join(f"\n    {failure}" for failure in result.failures)
    return (
        f"{'FAILED' if result.failures else 'ok':6} {result.case.name:24} {_times(result)}, "
        f"control {1000 * result.control_s:.0f} ms, {result.growth / 2**20:+.0f} MiB, "
        f"{result.seconds:.1f} s, {_answers(result)}{problems}"
    )


def table(results: Sequence[Result]) -> str:
    """The results in Markdown."""
    return "\n".join([_HEAD, *map(_row, results)])


def write(results: Sequence[Result], workers: int) -> None:
    """Replace the rows of these cases in the table of so many workers."""
    begin, end = markers(workers)
    before, found, rest = PAGE.read_text().partition(begin)
    old, ended, after = rest.partition(end)
    if not found or not ended:
        raise SystemExit(f"{PAGE.name} has no place for the table: {begin} … {end}")
    rows = {
        row.split("`")[1]: row for row in [*old.splitlines(), *map(_row, results)] if "`" in row
    }
    known = [rows[name] for name in CASES if name in rows]
    PAGE.write_text(f"{before}{begin}\n" + "\n".join([_HEAD, *known]) + f"\n{end}{after}")


def markers(workers: int) -> tuple[str, str]:
    """The lines around the table."""
    begin = f"<!-- attacks, --workers {workers}: made by `make attack` -->"
    return begin, "<!-- end of attacks -->"


def _row(result: Result) -> str:
    case = result.case
    name = f"`{case.name}` ({case.finding})" if case.finding else f"`{case.name}`"
    failures = "".join(f"; **{failure}**" for failure in result.failures)
    memory = f"{result.growth / 2**20:+.0f} MiB"
    cells = (name, case.sent, _times(result), memory, _answers(result) + failures)
    return f"| {' | '.join(cells)} |"


def _times(result: Result) -> str:
    image = f"{1000 * result.image_s:.0f} ms" if result.image_s else "–"
    translation = f"{1000 * result.translation_s:.0f} ms"
    if result.case.stops_models:
        translation = "Triton restarts"
    return f"{1000 * result.health_s:.0f} ms, {translation}, {image}"


def _answers(result: Result) -> str:
    counted = result.answers.most_common()
    return ", ".join(f"{answer} × {n}" if n > 1 else answer for answer, n in counted) or "none"
