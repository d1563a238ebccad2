"""The list of the course's systems, and what is measured of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from benchmarks.harness.machine import processor
from benchmarks.history import columns
from benchmarks.history.columns import COLUMNS, TimedAsk, exported
from benchmarks.history.command import compare
from benchmarks.history.page import tables
from examples import CHECKPOINTS, HISTORY_CHECKPOINTS
from examples.history.system import Ask, Curve, Group, Measure, System
from examples.history.systems import GROUPS
from inference.errors import SetupError

app = typer.Typer()
app.command()(compare)
SYSTEMS = [one for group in GROUPS.values() for one in group.systems]


def length(ask: Ask, count: int) -> float:
    """A score that is the sum of the items' lengths."""
    return float(sum(len(item) for item in ask("translate", {"texts": ["word"] * count})))


GROUP = Group(
    name="toys",
    title="Toys",
    story="Nothing.",
    systems=(
        System("example-vit", "First", 1990, "A paper", "An idea.", "python -m first"),
        System("example-gpt", "Second", 2001, "A paper", "An idea.", "python -m second"),
    ),
    measures=(Measure("length", length),),
    curve=Curve("length", "items", (Measure("8", lambda ask, _: length(ask, 8)),)),
)


def respond(bundle: str, task: str, fields: Mapping[str, Any]) -> Any:
    return SimpleNamespace(data=[text * len(bundle) for text in fields["texts"]])


@pytest.mark.parametrize("system", SYSTEMS, ids=[one.checkpoint for one in SYSTEMS])
def test_every_system_is_a_checkpoint_with_a_card(system: System) -> None:
    for file in ("config.json", "model.safetensors", "README.md"):
        assert (system.folder / file).is_file()
    module = system.command.removeprefix("python -m ").split()[0]
    assert (CHECKPOINTS.parents[1] / (module.replace(".", "/") + ".py")).is_file()


def test_every_historical_checkpoint_is_listed() -> None:
    listed = [one.checkpoint for one in SYSTEMS]
    for group in GROUPS.values():
        assert len({one.checkpoint for one in group.systems}) == len(group.systems)
    assert {folder.name for folder in HISTORY_CHECKPOINTS.iterdir()} <= set(listed)


@pytest.mark.parametrize("group", GROUPS.values(), ids=list(GROUPS))
def test_systems_of_a_group_are_in_order(group: Group) -> None:
    years = [one.year for one in group.systems]
    assert years == sorted(years)
    assert group.measures


def test_every_column_of_every_system_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    def respond_alike(group: Group, repository: Path) -> Iterator[tuple[str, dict[str, TimedAsk]]]:
        for column in COLUMNS:
            shown = group.systems[:1] if column == "int8" else group.systems
            bundles = {one: SimpleNamespace(manifest=SimpleNamespace(name=one.checkpoint))
                       for one in shown}  # fmt: skip
            yield column, {one.checkpoint: TimedAsk(respond, bundles[one]) for one in shown}

    monkeypatch.setattr(columns, "columns", respond_alike)
    monkeypatch.setattr(columns, "graph_bytes", lambda bundle: 2_000_000)
    figures = columns.measure_group(GROUP, Path(), 10, columns.Console())
    assert figures["processor"] == processor()
    first, second = (figures["systems"][one.checkpoint] for one in GROUP.systems)
    assert first["scores"]["length"] == dict.fromkeys(COLUMNS, 10 * 4 * len("example-vit"))
    assert first["curve"]["8"]["served"] == 8 * 4 * len("example-vit")
    assert first["megabytes"]["ONNX"] == 2.0
    assert first["parameters"] > 100_000
    assert "int8" not in second["scores"]["length"]
    shown = tables(GROUP, figures)
    assert shown["Quality"].rows[1] == ["`example-gpt`", "length", "440.0", "440.0", "–", "440.0"]
    assert shown["length, served"].rows == [["`example-vit`", "352.0"], ["`example-gpt`", "352.0"]]


def test_first_request_is_not_timed() -> None:
    bundle: Any = SimpleNamespace(manifest=SimpleNamespace(name="example-vit"))
    ask = TimedAsk(respond, bundle)
    ask("translate", {"texts": ["a"] * 5})
    assert ask.items_per_second is None
    ask("translate", {"texts": ["a"] * 3})
    assert ask.items == 3
    assert ask.items_per_second is not None


def test_missing_checkpoint_names_what_trains_it(tmp_path: Path) -> None:
    system = System("history-nothing", "Nothing", 1990, "", "", "python -m export.train_nothing")
    with pytest.raises(SetupError, match=r"history-nothing.*python -m export\.train_nothing"):
        exported(system, tmp_path)


def test_unknown_group_lists_the_groups() -> None:
    result = CliRunner().invoke(app, ["nothing"])
    assert result.exit_code == 1
    assert "'nothing'" in result.stderr
    assert all(name in result.stderr for name in GROUPS)


def test_groups_are_chosen_by_how_their_names_begin() -> None:
    result = CliRunner().invoke(app, ["few-shot", "--list"], env={"COLUMNS": "200"})
    assert {line.split()[0] for line in result.stdout.splitlines()} == {
        "group",
        "few-shot",
        "few-shot-pictures",
    }
    assert CliRunner().invoke(app, ["few-sh"]).exit_code == 1


def test_list_has_every_system() -> None:
    result = CliRunner().invoke(app, ["--list"], env={"COLUMNS": "200"})
    assert result.exit_code == 0
    assert all(one.checkpoint in result.stdout for one in SYSTEMS)
