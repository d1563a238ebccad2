"""The error tree and its drawing, and errors of models as clients get them."""

from __future__ import annotations

import re
from collections.abc import Iterator

import grpc
import pytest

from inference import errors
from inference.errors import KINDS, BundleError, InternalError, InvalidRequest, Overloaded, TooLong
from inference.model_errors import decode_error, encode_error, hide_cause


def leaf_errors(kind: type[errors.ServingError]) -> Iterator[type[errors.ServingError]]:
    for child in kind.__subclasses__():
        yield child
        yield from leaf_errors(child)


REQUEST_ERRORS = [
    kind for kind in leaf_errors(errors.ServingError) if not issubclass(kind, errors.SetupError)
]


def test_the_drawing_shows_every_error_with_its_statuses() -> None:
    drawn = {
        cells[0]: cells[1:]
        for line in (errors.__doc__ or "").splitlines()
        if (cells := line.strip("│├└─ ").split()) and len(cells) == 4
    }
    actual = {
        kind.__name__: [str(kind.http_status), kind.grpc_status, kind.wire]
        for kind in REQUEST_ERRORS
    }
    assert {name: drawn.get(name) for name in actual} == actual


def test_wire_names_are_unique() -> None:
    names = [kind.wire for kind in leaf_errors(errors.ServingError)]
    assert len(names) == len(set(names))


def test_grpc_statuses_exist() -> None:
    assert all(hasattr(grpc.StatusCode, kind.grpc_status) for kind in REQUEST_ERRORS)


def test_errors_carry_their_wire_name() -> None:
    assert encode_error(Overloaded("full")) == "overloaded: full"


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("[ONNXRuntimeError] : 6 : /models/x/step.onnx: 'the text'"),
        ValueError("/models/x"),
        BundleError("/models/x is missing"),
        KeyError("the text"),
    ],
)
def test_texts_of_exceptions_are_logged_under_the_id_that_is_sent(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    sent = encode_error(error)
    assert sent.startswith("internal: ")
    assert "/models" not in sent
    assert "the text" not in sent
    assert "/models" in caplog.text or "the text" in caplog.text
    reference = sent[-8:]
    assert re.fullmatch("[0-9a-f]{8}", reference)
    assert f"id={reference}" in caplog.text


def test_a_process_without_memory_is_busy() -> None:
    error = hide_cause(MemoryError("arena of /models/x"), "decoding failed")
    assert isinstance(error, Overloaded)
    assert "/models" not in error.message


def test_what_a_runtime_wrote_is_no_error_of_ours() -> None:
    for runtime in ("onnx runtime error", "openvino error", "ONNXRuntime error"):
        assert decode_error(f"in model: {runtime} 2: too_long: /models/x") is None
    assert decode_error("onnxruntime failed: shape") is None


@pytest.mark.parametrize("error", [InvalidRequest("a: b"), TooLong("9 tokens"), Overloaded("full")])
def test_errors_survive_behind_a_prefix(error: Exception) -> None:
    decoded = decode_error(f"[StatusCode.INTERNAL] in model: {encode_error(error)}")
    assert type(decoded) is type(error)
    assert str(decoded) == str(error)


def test_errors_of_the_setup_are_no_kinds_of_requests() -> None:
    assert "setup" not in KINDS
    assert KINDS["internal"] is InternalError
