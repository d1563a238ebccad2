"""The page for operators names what is really there."""

import re
from pathlib import Path

from serving.gateway.observability.metrics import Metrics
from serving.liveness import heartbeat

PAGE = (Path(__file__).parents[2] / "docs" / "operations.md").read_text(encoding="utf-8")


def test_the_page_names_every_number_and_no_other() -> None:
    metrics = Metrics()
    metrics.answered("/v1/translate", 0.1, "timeout")
    metrics.answered("/v1/translate", 0.1, None)
    exposed = re.findall(r"^# TYPE (\S+)", metrics.exposition().decode(), re.MULTILINE)
    numbers = {name for name in exposed if not name.endswith("_created")}
    numbers |= {heartbeat.PREFIX + name for name in (*heartbeat.COUNTERS, *heartbeat.GAUGES)}
    assert set(re.findall(r"`(triptych_\w+)`", PAGE)) == numbers
