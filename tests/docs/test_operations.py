"""The page for operators names what is really there."""

import re
from pathlib import Path

import pytest
from pydantic import ByteSize, TypeAdapter

from codegen.settings import COMMANDS
from inference.engine.scheduler import Capacity
from serving.gateway.observability.metrics import Metrics
from serving.liveness import heartbeat
from serving.settings.capacity import CapacitySettings
from serving.settings.command_settings import flag_of
from serving.settings.gateway_settings import GatewaySettings

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "operations.md").read_text(encoding="utf-8")
OTHERS = {"--runtime", "--seed", "--loaded", "--no-self-check"}
"""Flags of `triptych export`, `make fuzz` and `triptych verify`; the negation of a flag."""


def test_the_page_names_every_number_and_no_other() -> None:
    metrics = Metrics()
    metrics.answered("/v1/translate", 0.1, "timeout")
    metrics.answered("/v1/translate", 0.1, None)
    exposed = re.findall(r"^# TYPE (\S+)", metrics.exposition().decode(), re.MULTILINE)
    numbers = {name for name in exposed if not name.endswith("_created")}
    numbers |= {heartbeat.PREFIX + name for name in (*heartbeat.COUNTERS, *heartbeat.GAUGES)}
    assert set(re.findall(r"`(triptych_\w+)`", PAGE)) == numbers


def table(heading: str) -> dict[str, str]:
    """Setting → its default, of the table with this heading."""
    rows = PAGE.partition(f"| {heading} | default | what it bounds")[2].partition("\n\n")[0]
    found = re.findall(r"^\| `--([a-z-]+)` \| ([^|]+?) \|", rows, re.MULTILINE)
    return {flag.replace("-", "_"): default for flag, default in found}


def test_defaults_of_a_generators_limits_are_the_engines() -> None:
    defaults = table("flag of `serve` and `triton`")
    assert set(defaults) == set(CapacitySettings.model_fields)
    assert CapacitySettings.of(defaults).capacity() == Capacity()


def test_defaults_of_the_edges_limits_are_the_gateways() -> None:
    defaults = table("setting")
    assert defaults.pop("max_connections").startswith("2048, or fewer")
    read = {
        name: TypeAdapter(ByteSize).validate_python(text.removesuffix(" s"))
        for name, text in defaults.items()
    }
    assert len(read) == 3
    assert read == {name: GatewaySettings.model_fields[name].default for name in read}


@pytest.mark.parametrize(
    "page", ["operations", "several-tritons", "supervision", "deployment/one-machine"]
)
def test_flags_of_a_page_for_operators_exist(page: str) -> None:
    cited = set(re.findall(r"`(--[a-z-]+)", (DOCS / f"{page}.md").read_text(encoding="utf-8")))
    assert cited
    fields = {name for settings in COMMANDS.values() for name in settings.model_fields}
    assert cited - {flag_of(name) for name in fields} <= OTHERS
