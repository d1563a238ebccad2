"""`make attack`: hostile requests against real stacks, while another client uses the service.

It fails where that client's `/health` takes more than 250 ms or its small translation more than
2 s, where the gateway takes more memory than its budgets, answers with an error that is not
declared, logs a stack trace, or goes on working afterwards.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

from tests.attack import cases as _cases  # noqa: F401
from tests.attack import report
from tests.attack.attack import CASES, Case
from tests.attack.bystander import Bystander
from tests.attack.report import Result, run_case
from tests.attack.stacks import Target, keyed, keyless


def attack(
    cases: Iterable[Case], opened: AbstractContextManager[Target], seed: int
) -> Iterator[Result]:
    """Run cases, one after the other, against a stack of their own."""
    with opened as target:
        bystander = Bystander(target)
        try:
            for case in cases:
                result = run_case(case, target, bystander, seed)
                print(report.line(result), flush=True)
                yield result
        finally:
            bystander.close()


def main() -> int:
    """Run; 1 if anything is wrong."""
    given = _parsed()
    chosen = [case for case in CASES.values() if not given.only or case.name in given.only]
    results: list[Result] = []
    for open_stack, is_keyless in ((keyed, False), (keyless, True)):
        cases = [case for case in chosen if case.is_keyless == is_keyless]
        if not cases:
            continue
        with tempfile.TemporaryDirectory() as folder:
            opened = open_stack(given.repository, Path(folder), given.workers)
            for result in attack(cases, opened, given.seed):
                results.append(result)
                if given.record:
                    report.write([result], given.workers)
    failed = [result for result in results if result.failures]
    print(f"{len(results)} cases, {len(failed)} failed: {', '.join(r.case.name for r in failed)}")
    return 1 if failed else 0


def _parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make attack", description=__doc__.splitlines()[0])
    parser.add_argument("--repository", type=Path, default=Path("model_repository"))
    parser.add_argument("--only", nargs="+", choices=sorted(CASES), metavar="NAME")
    parser.add_argument("--workers", type=int, default=1, help="Processes of the gateway.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--record", action="store_true", help="Write the tables of README.md here.")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
