"""`triptych verify`: passes a sound bundle, fails a damaged one, with and without a checkpoint."""

from __future__ import annotations

import json
import shutil
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import typer
from onnx import numpy_helper
from typer.testing import CliRunner

from export.parity.graph_runs import bundle_path
from export.report.command import verify
from inference.bundle.manifest import Bundle
from tests.export.report.conftest import Published, write_report

app = typer.Typer()
app.command()(verify)

KINDS = ["gpt2", pytest.param("marian", marks=pytest.mark.full), "clip"]
"""A decoder alone, one with a source, and stateless graphs in two parts."""

pytestmark = pytest.mark.slow


def _verify(bundle: Bundle, *options: object) -> tuple[int, str, dict[str, Any], str]:
    """Exit code, console, and the two files of the report."""
    repository = bundle.folder.parents[1]
    output = repository.parent / "report"
    arguments = [bundle.manifest.name, "--repository", repository, "--output", output, *options]
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    report = json.loads((output / "report.json").read_text()) if output.exists() else {}
    page = (output / "report.html").read_text() if output.exists() else ""
    return result.exit_code, result.output, report, page


def _statuses(report: dict[str, Any]) -> dict[str, str]:
    return {check["title"]: check["status"] for check in report["checks"]}


def _manifest(bundle: Bundle, **source: object) -> None:
    """Changes the manifest's facts about its source."""
    path = bundle.folder / "bundle.json"
    fields = json.loads(path.read_text())
    fields["source"] |= source
    path.write_text(json.dumps(fields))


def _change_a_weight(bundle: Bundle) -> None:
    path = bundle_path(bundle, next(reversed(bundle.manifest.graphs)))
    model = onnx.load(str(path))
    weight = next(t for t in model.graph.initializer if len(t.dims) == 2 and t.data_type == 1)
    values = numpy_helper.to_array(weight).copy()
    values[..., ::2] += 1e-2
    weight.CopyFrom(numpy_helper.from_array(values, weight.name))
    onnx.save_model(model, str(path))


@pytest.mark.parametrize("family", KINDS)
def test_sound_bundle_passes_against_its_checkpoint(family: str, published: Published) -> None:
    code, output, report, page = _verify(published(family))
    assert code == 0, output
    assert report["passed"]
    assert set(_statuses(report).values()) == {"passed", "not repeated"}
    not_repeated = [title for title, s in _statuses(report).items() if s == "not repeated"]
    assert not_repeated == ["tokenizer loads and stays inside the vocabulary"]
    assert report["outputs"]
    assert max(report["outputs"].values()) < 1e-5
    assert all(len(spent) >= 2 for spent in report["latency_ms"].values())
    if family != "clip":
        assert report["tokens"]["compared"] == 50
    _assert_self_contained(page)


@pytest.mark.parametrize("family", KINDS)
def test_changed_weight_fails_against_the_checkpoint(family: str, published: Published) -> None:
    bundle = published(family)
    _change_a_weight(bundle)
    write_report(bundle)  # so that the checksums do not give it away
    code, output, report, page = _verify(bundle)
    assert code == 1
    assert not report["passed"]
    assert _statuses(report)["outputs equal PyTorch's"] == "failed"
    assert "ONNX differs from the float64 network at" in output
    assert 'class="bad"' in page


def test_changed_weight_fails_without_a_checkpoint(published: Published) -> None:
    bundle = published("gpt2")
    _change_a_weight(bundle)
    _manifest(bundle, location=None)
    code, _, report, _ = _verify(bundle)
    assert code == 1
    statuses = _statuses(report)
    assert statuses["files are those that were verified at export"] == "failed"
    assert statuses["outputs equal PyTorch's"] == "not repeated"


def test_graph_that_does_not_load_fails_and_leaves_a_report(published: Published) -> None:
    bundle = published("clip")
    path = bundle_path(bundle, "text")
    path.write_bytes(path.read_bytes()[:2000])
    code, _, report, page = _verify(bundle)
    assert code == 1
    statuses = _statuses(report)
    assert statuses["graphs load with the manifest's inputs and outputs"] == "failed"
    assert statuses["outputs equal PyTorch's"] == "not repeated"
    assert "failed" in page


def test_graph_with_another_interface_fails(published: Published) -> None:
    bundle = published("gpt2")
    path = bundle.folder / "bundle.json"
    fields = json.loads(path.read_text())
    fields["graphs"]["step"]["inputs"][0]["name"] = "ids"
    path.write_text(json.dumps(fields))
    code, output, _, _ = _verify(bundle)
    assert code == 1
    assert "its inputs are not the manifest's" in output


def test_without_a_checkpoint_the_rest_is_repeated_and_the_reason_stated(
    published: Published, tmp_path: Path
) -> None:
    bundle = published("clip")
    _manifest(bundle, location=str(tmp_path / "gone"))
    code, output, report, page = _verify(bundle)
    assert code == 0
    statuses = _statuses(report)
    assert statuses["outputs are finite, and a row alone equals its row in a batch"] == "passed"
    assert statuses["outputs equal PyTorch's"] == "not repeated"
    assert "its checkpoint is no longer at" in output
    assert "give it with --checkpoint" in output
    assert "verified without its checkpoint" in page


def test_other_checkpoint_fails(published: Published, tmp_path: Path) -> None:
    bundle = published("gpt2")
    other = tmp_path / "other"
    shutil.copytree(json.loads((bundle.folder / "bundle.json").read_text())["source"]["location"],
                    other)  # fmt: skip
    (other / "notes.txt").write_text("another file")
    code, _, report, _ = _verify(bundle, "--checkpoint", other)
    assert code == 1
    assert _statuses(report)["the checkpoint is the one that was exported"] == "failed"
    assert _statuses(report)["outputs equal PyTorch's"] == "passed"


@pytest.mark.parametrize("family", ["gpt2", "clip"])
def test_int8_bundle_is_compared_with_float32(family: str, published: Published) -> None:
    bundle = published(family, "int8")
    code, output, report, page = _verify(bundle)
    assert code == 0, output
    assert _statuses(report)["int8 stays close to float32"] == "passed"
    assert 0.98 <= min(report["int8"].values()) < 1
    assert "bit for bit" in output
    assert "Loss of int8" in page


def test_int8_bundle_is_compared_with_the_fp32_bundle_of_the_repository(
    published: Published, tmp_path: Path
) -> None:
    bundle = published("gpt2", "int8")
    _manifest(bundle, location=None)
    code, output, report, _ = _verify(bundle)
    assert code == 0
    assert _statuses(report)["int8 stays close to float32"] == "not repeated"
    assert "no fp32 bundle of the same checkpoint" in output
    published("gpt2", "fp32")
    code, output, report, _ = _verify(bundle)
    assert code == 0
    assert _statuses(report)["int8 stays close to float32"] == "passed"
    assert "against twin-fp32 version 1 (fp32)" in output


def test_int8_graph_with_wrong_scales_fails(published: Published) -> None:
    bundle = published("clip", "int8")
    path = bundle_path(bundle, "text")
    model = onnx.load(str(path))
    scale = next(t for t in model.graph.initializer if t.name.endswith("_scale") and t.dims)
    values = numpy_helper.to_array(scale).copy()
    values[::2] *= np.float32(-3)
    scale.CopyFrom(numpy_helper.from_array(values, scale.name))
    onnx.save_model(model, str(path))
    code, _, report, _ = _verify(bundle)
    assert code == 1
    assert _statuses(report)["int8 stays close to float32"] == "failed"


def test_unknown_bundle_is_one_line(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["missing", "--repository", str(tmp_path)])
    assert result.exit_code == 1
    assert "has no complete version" in result.output


class _Elements(HTMLParser):
    """Open elements, attributes and references of a page."""

    VOID = {"meta", "rect", "line"}

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        self.links += [value or "" for name, value in attrs if name in ("href", "src")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def _assert_self_contained(page: str) -> None:
    elements = _Elements()
    elements.feed(page)
    assert elements.open == []
    assert elements.links == []
    assert not {"script", "link", "img", "iframe"} & set(elements.seen)
    assert "http" not in page
    assert elements.seen.count("svg") >= 3
    assert "prefers-color-scheme: dark" in page
    assert "x &lt; y is not supported" in page  # text is escaped
