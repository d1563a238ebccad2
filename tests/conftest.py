"""Hypothesis profiles, and a record of the tests that were skipped.

`HYPOTHESIS_PROFILE=full` (set by `make test-all`) selects the thorough profile: how many examples
each property is tested on.
"""

import gc
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests.skipped import VARIABLE, record_skips

settings.register_profile(
    "quick", max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("full", settings.get_profile("quick"), max_examples=400)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))


SHARED_STACKS = {"stack", "tiny_stack"}


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


@pytest.hookimpl(tryfirst=True)  # xdist reads the groups in the same hook
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Files that use one stack of the session are one group of `--dist loadgroup`.

    Each worker that has such a test would start that stack. Tests of Triton, which wait longest,
    go first.
    """
    if not getattr(config.option, "loadgroup", False):  # set in xdist's workers
        return
    stacks: dict[Path, str] = {}
    for item in items:
        for name in SHARED_STACKS & set(getattr(item, "fixturenames", ())):
            stacks[item.path] = name
    for item in items:
        group = "page" if item.path.parent.name == "page" else stacks.get(item.path)
        item.add_marker(pytest.mark.xdist_group(group or str(item.path)))
    items.sort(key=lambda item: item.path.parent.name != "triton")


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
