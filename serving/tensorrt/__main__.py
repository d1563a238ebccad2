"""`python -m serving.tensorrt BUNDLE PLANS`: a line of JSON for each step, then the plans.

The supervisor and `triptych plan` run it (`serving.tensorrt.plans`).
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from inference.bundle.reader import open_bundle
from inference.errors import SetupError
from serving.tensorrt.builder import Builds, Target, compute_capability, tensorrt
from serving.tensorrt.plan_folder import PlanFolder


def main() -> int:
    """Build what is missing; exit code 1 with the reason as the last line."""
    parser = argparse.ArgumentParser(prog="python -m serving.tensorrt")
    parser.add_argument("bundle", type=Path)
    parser.add_argument("plans", type=Path)
    parser.add_argument("--again", action="store_true", help="build plans that fit, too")
    parser.add_argument("--lookup", action="store_true", help="build nothing")
    options = parser.parse_args()
    try:
        target, capability = Target(tensorrt()), compute_capability()
        builds = Builds(PlanFolder(options.plans), target, capability, _progress)
        bundle = open_bundle(options.bundle)
        plans = builds.ensure(bundle, again=options.again, is_lookup=options.lookup)
    except SetupError as error:
        _write(error=error.message)
        return 1
    _write(plans={model: str(path) for model, path in plans.items()})
    return 0


def _progress(line: str) -> None:
    _write(progress=line)


def _write(**fields: object) -> None:
    print(json.dumps(fields), flush=True)


if __name__ == "__main__":
    sys.exit(main())
