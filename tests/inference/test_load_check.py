"""What a model must compute when it is loaded."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inference.bundle.manifest import Graph, Role, Tensor
from inference.bundle.self_check import FILE, OFF, PARAMETER, SelfCheck, checksum
from inference.errors import BundleError
from inference.load_check import (
    LoadCheck,
    compared_ports,
    draw_picture,
    generated_outputs,
    load_check,
    sample_values,
    without_ties,
)
from inference.sequences import Finished, Hypothesis

OUTPUTS = {"y": np.array([1, -2, 4], np.float32)}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A version folder with a graph and its check."""
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "model.onnx").write_bytes(bytes(1000))
    _write(tmp_path / "1")
    return tmp_path / "1"


def _write(folder: Path) -> None:
    checksums = {"model.onnx": checksum(folder / "model.onnx")}
    inputs = {"x": np.ones((1, 2), np.int64)}
    SelfCheck(checksums, tolerance=0.01, inputs=inputs, outputs=OUTPUTS).write(folder)


def _load(folder: Path, y: Any, error: Exception | None = None) -> list[Any]:
    """Loads a model that computes `y`; returns the calls that it got."""
    calls = []
    with LoadCheck(folder, "twice version 1") as check:
        if error is not None:
            raise error
        check.compare_outputs(
            lambda names, feeds: calls.append((list(names), feeds)) or {"y": np.array(y)},
            ["y"],
        )
    return calls


def test_what_is_written_is_read(folder: Path) -> None:
    found = SelfCheck.read(folder)
    assert found is not None
    assert found.tolerance == 0.01
    assert found.inputs["x"].tolist() == [[1, 1]]
    assert found.outputs["y"].dtype == np.float32
    assert (folder / FILE).stat().st_size < 2000


def test_model_that_computes_what_its_export_did_is_loaded(folder: Path) -> None:
    [(names, feeds)] = _load(folder, [1.03, -2, 3.97])
    assert names == ["y"]
    assert feeds["x"].dtype == np.int64


@pytest.mark.parametrize(
    ("y", "problem"),
    [
        ([1, -2, 4.06], "y differs by 1.5e-02 of its largest value, 1.0e-02 is allowed"),
        ([1, -2, np.nan], "y differs by inf"),
        ([1, -2, np.inf], "y differs by inf"),
        ([1, -2], "y differs by inf"),
    ],
)
def test_other_outputs_are_refused_in_one_line(folder: Path, y: Any, problem: str) -> None:
    with pytest.raises(BundleError) as refusal:
        _load(folder, y)
    message = str(refusal.value)
    assert message.startswith(f"twice version 1 fails its self-check: {problem}")
    assert "onnxruntime" in message
    assert "\n" not in message


@pytest.mark.parametrize("change", ["one bit", "truncated", "missing"])
def test_changed_file_is_refused_by_its_name(folder: Path, change: str) -> None:
    path = folder / "model.onnx"
    content = bytearray(path.read_bytes())
    if change == "one bit":
        content[500] ^= 1
        path.write_bytes(content)
    elif change == "truncated":
        path.write_bytes(content[:999])
    else:
        path.unlink()
    with pytest.raises(BundleError, match=r"model\.onnx changed since the export: export it again"):
        _load(folder, OUTPUTS["y"])
    with pytest.raises(BundleError, match=r"model\.onnx changed"):  # not the runtime's own words
        _load(folder, OUTPUTS["y"], RuntimeError("protobuf parsing failed"))


def test_error_of_unchanged_files_stays_as_it_is(folder: Path) -> None:
    with pytest.raises(RuntimeError, match="out of memory"):
        _load(folder, OUTPUTS["y"], RuntimeError("out of memory"))


def test_damaged_check_is_refused(folder: Path) -> None:
    path = folder / FILE
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(BundleError, match="is damaged"):
        LoadCheck(folder, "twice version 1")


def test_older_bundle_is_loaded_with_a_warning(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (folder / FILE).unlink()
    with LoadCheck(folder, "twice version 1") as check:
        assert not check.has_outputs
    [message] = caplog.messages
    assert "has no self-check" in message


def test_check_can_be_switched_off(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    (folder / "model.onnx").unlink()
    caplog.set_level(logging.WARNING)
    lines: list[str] = []
    with load_check(folder, "twice", {PARAMETER: OFF}, lines.append) as check:
        assert not check.has_outputs
    assert not caplog.messages
    with pytest.raises(BundleError), load_check(folder, "twice", {}, lines.append):
        pass
    (folder / FILE).unlink()
    with load_check(folder, "twice", {}, lines.append):
        pass
    assert lines == ["twice version 1 has no self-check: export it again to have one"]


def _finished(tokens: list[int], top: list[list[float]]) -> Finished:
    pairs = tuple(tuple(enumerate(values)) for values in top)
    return Finished((Hypothesis(tuple(tokens), 0.0, "stop", top=pairs),), 1)


def test_tokens_are_compared_up_to_the_first_near_tie(tmp_path: Path) -> None:
    top = [[-0.1, -3.0], [-1.0, -1.01, -2.0], [-0.2, -4.0]]
    outputs = generated_outputs(_finished([7, 8, 9], top))
    kept = without_ties(outputs, tolerance=0.01, scale=4.0)
    assert kept["tokens"].tolist() == [7]
    assert len(kept["log-probabilities"]) == 2  # those of the near tie follow the same tokens
    folder = tmp_path / "1"
    folder.mkdir()
    SelfCheck({}, 0.01, 4.0, {}, kept, {"max_new_tokens": 3}).write(folder)
    from inference.generation import Generation

    rules = Generation(pad_token_id=0, max_new_tokens=5)
    for tokens, is_same in (([7, 8, 9], True), ([7, 5, 5], True), ([6, 8, 9], False)):
        with LoadCheck(folder, "m version 1") as check:
            if is_same:
                check.compare_tokens(lambda _, t=tokens: _finished(t, top), rules)
                continue
            with pytest.raises(BundleError, match=r"tokens \[6\] are not \[7\]"):
                check.compare_tokens(lambda _, t=tokens: _finished(t, top), rules)


def test_banned_tokens_leave_holes_that_must_be_the_same() -> None:
    outputs = generated_outputs(_finished([1, 2], [[0.0], [-0.5, -1.0]]))
    check = SelfCheck({}, 0.01, outputs=outputs)
    assert check.compare(outputs) is None
    other = generated_outputs(_finished([1, 2], [[0.0, -9.0], [-0.5, -1.0]]))
    assert "inf" in str(check.compare(other))


def test_choices_among_near_ties_are_not_compared() -> None:
    def graph(*roles: Role) -> Graph:
        ports = [Tensor(name=r.value, dtype="float32", shape=("B",), role=r) for r in roles]
        return Graph(file="g", inputs=(), outputs=tuple(ports))

    assert compared_ports(graph(Role.TOP_TOKENS, Role.TOP_SCORES)) == ["top_scores"]
    assert compared_ports(graph(Role.BOXES, Role.CHOSEN, Role.CHOSEN_SCORES)) == ["chosen_scores"]
    assert compared_ports(graph(Role.EMBEDDING)) == ["embedding"]


def test_large_outputs_are_sampled_over_their_whole_length() -> None:
    assert sample_values(np.arange(5)).tolist() == [0, 1, 2, 3, 4]
    sampled = sample_values(np.arange(10_000).reshape(4, -1))
    assert len(sampled) <= 4096
    assert sampled[-1] > 9_990
    assert sample_values(np.zeros(0)).size == 0


def test_picture_takes_little_space() -> None:
    import zlib

    picture = draw_picture((2, 224, 224, 3))
    assert picture.shape == (2, 224, 224, 3)
    assert len(np.unique(picture)) > 100
    assert len(zlib.compress(picture.tobytes())) < 12_000
