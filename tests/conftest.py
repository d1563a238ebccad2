"""Hypothesis profiles, and a record of the tests that were skipped.

`HYPOTHESIS_PROFILE=full` (set by `make test-all`) selects the thorough profile: how many examples
each property is tested on.
"""

import gc
import os
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadFileScheduling

from tests.skipped import VARIABLE, record_skips

settings.register_profile(
    "quick", max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("full", settings.get_profile("quick"), max_examples=400)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[Any]:
    """No garbage is collected while modules are imported; they and the tests are never freed.

    Later collections skip them, and are rarer: an export makes a million objects.
    """
    gc.disable()
    result = yield
    gc.freeze()
    gc.set_threshold(100_000, 50, 100)
    gc.enable()
    return result


def pytest_unconfigure() -> None:
    """Garbage is searched for once more, whose errors pytest reports, and not three times."""
    gc.collect()
    gc.freeze()


class ByStack(LoadFileScheduling):
    """`--dist loadfile`, but files that use one stack of the session go to one worker.

    Each worker that has such a file would start that stack.
    """

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return _stack_of(self.config.rootpath / file) or file


@cache
def _stack_of(path: Path) -> str | None:
    """The stack of the session that a file's tests use."""
    if path.parent.name == "page":
        return "page"
    text = path.read_text(encoding="utf-8") if path.parent.name == "e2e" else ""
    if "tiny_stack" in text or "tiny_client" in text:
        return "tiny_stack"
    has_own = "running(" in text
    return "stack" if re.search("stack: Stack|client: Client", text) and not has_own else None


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByStack | None:
    return ByStack(config, log) if config.getvalue("dist") == "loadfile" else None


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Record what was skipped; of parallel workers the controller has all reports."""
    file = os.environ.get(VARIABLE)
    if file is None or hasattr(session.config, "workerinput"):
        return
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    reports = reporter.stats.get("skipped", []) if reporter else []
    reasons = [report.longrepr[2] for report in reports if isinstance(report.longrepr, tuple)]
    record_skips(Path(file), reasons)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out files without integration tests where only those are run: importing takes long."""
    wants_integration = str(config.option.markexpr).startswith("integration")
    if wants_integration and collection_path.match("test_*.py"):
        return "pytest.mark.integration" not in collection_path.read_text(encoding="utf-8") or None
    return None
