"""Hypothesis profiles, and a record of the tests that were skipped.

`HYPOTHESIS_PROFILE=full` (set by `make test-all`) selects the thorough profile: how many examples
each property is tested on.
"""

import gc
import os
import re
import signal
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


def pytest_configure() -> None:
    """Have programs that tests start receive the signals that this process ignores.

    A script ignores SIGINT in what it runs in the background, nohup SIGHUP. Programs inherit what
    is ignored, and not what has a handler.
    """
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, lambda *_: None)


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


LONGEST = (
    *("stack", "page", "tests/serving/triton/test_server.py", "tests/e2e/test_versions.py"),
    "tests/places/test_places.py",
    *("tests/e2e/test_staying_alive.py", "tiny_stack", "tests/e2e/test_several_tritons.py"),
    *("tests/e2e/test_workers.py", "tests/docs/test_tutorials.py"),
    *("tests/e2e/test_lost_processes.py", "tests/serving/triton/test_run_triton.py"),
)
"""Stacks and files of the second run of `make test` that take longest, the longest first: a run
ends when its last file does. The third one needs no examples, which the first two export."""


class ByStack(LoadFileScheduling):
    """`--dist loadfile`, but files that use one stack of the session go to one worker.

    Each worker that has such a file would start that stack.
    """

    def _split_scope(self, nodeid: str) -> str:
        return unit_of(nodeid, self.config)


def unit_of(nodeid: str, config: pytest.Config) -> str:
    """What goes to one worker with a test: the files of a stack, or the test's file."""
    file = nodeid.partition("::")[0]
    return _stack_of(config.rootpath / file) or file


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
    if config.getvalue("dist") != "loadfile":
        return None
    config.option.loadscopereorder = False  # the collected order is that of work
    return ByStack(config, log)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What takes longest is first, where only integration tests are run."""
    if _wants_integration(config):
        ranks = {unit: rank for rank, unit in enumerate(LONGEST)}
        items.sort(key=lambda item: ranks.get(unit_of(item.nodeid, config), len(ranks)))


def _wants_integration(config: pytest.Config) -> bool:
    return str(config.option.markexpr).startswith("integration")


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
    if _wants_integration(config) and collection_path.match("test_*.py"):
        return "pytest.mark.integration" not in collection_path.read_text(encoding="utf-8") or None
    return None
