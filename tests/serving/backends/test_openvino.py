"""The `triptych_openvino` backend: in a real Triton, and its compiled graphs alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from tritonclient.grpc import InferenceServerClient as Client
from tritonclient.utils import InferenceServerException

from inference.stateless.sessions import InvalidArgument
from tests.inference.tiny_models import parse_graph, publish
from tests.serving.backends.test_onnxruntime import (
    SUMS,
    config,
    floats,
    infer,
    product,
    product_tensors,
    sums,
)
from tests.serving.triton.tiny import brief_server, settings

OPENVINO = 'backend: "triptych_openvino"'


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    repository = tmp_path_factory.mktemp("repository")

    def served(name: str, model: onnx.ModelProto, *tensors: str, max_batch: int = 8) -> None:
        text = config(*tensors, max_batch_size=max_batch)
        text = text.replace('backend: "onnxruntime"', OPENVINO)
        publish(repository, name, model, text)

    served("sums", sums(), *SUMS)
    served("product", product("float"), *product_tensors("FP32"), max_batch=0)
    with (
        brief_server(settings(repository)) as started,
        Client(started.grpc_address) as connected,
    ):
        yield connected


@pytest.mark.integration
def test_requested_outputs_are_returned(client: Client) -> None:
    x = floats([1, -2, 3], [4, 5, 0.5])
    both = infer(client, "sums", x=x)
    np.testing.assert_array_equal(both.as_numpy("double"), x + x)
    np.testing.assert_array_equal(both.as_numpy("square"), x * x)
    one = infer(client, "sums", ["square"], x=x[:1, :2])
    assert one.as_numpy("double") is None
    np.testing.assert_array_equal(one.as_numpy("square"), (x * x)[:1, :2])


@pytest.mark.integration
def test_failed_run_is_an_error_and_the_next_request_is_served(client: Client) -> None:
    row, column = floats([1, 2, 3]), floats([4], [5], [6])
    with pytest.raises(InferenceServerException, match=r"internal: the request failed: .* id "):
        infer(client, "product", a=row, b=column[:2])
    assert infer(client, "product", a=row, b=column).as_numpy("c").item() == 32


def _config(**parameters: str) -> dict[str, Any]:
    return {
        "name": "sums",
        "input": [{"name": "x"}],
        "output": [{"name": "double"}, {"name": "square"}],
        "parameters": {name: {"string_value": value} for name, value in parameters.items()},
    }


def _saved(folder: Path) -> Path:
    onnx.save(sums(), folder / "model.onnx")
    return folder / "model.onnx"


def _compiled(file: Path, config: dict[str, Any]) -> Any:
    from inference.stateless.compiled_graphs import CompiledGraphs

    return CompiledGraphs(file, config)


def test_results_stay_as_they_were_when_the_next_request_runs(tmp_path: Path) -> None:
    compiled = _compiled(_saved(tmp_path), _config())
    first = compiled.run(["double"], {"x": floats([1, 2])})["double"]
    compiled.run(["double"], {"x": floats([5, 6])})
    np.testing.assert_array_equal(first, floats([2, 4]))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"input": [{"name": "y"}]}, "unexpected inference input 'y', allowed inputs are: x"),
        ({"output": [{"name": "cube"}]}, "unexpected inference output 'cube'"),
        (
            {"parameters": {"inference_precision": {"string_value": "f8"}}},
            "inference_precision must be f32 or bf16, not 'f8'",
        ),
    ],
)
def test_configuration_that_does_not_fit_is_refused(
    change: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    with pytest.raises(InvalidArgument, match=reason):
        _compiled(_saved(tmp_path), _config() | change)


def test_damaged_and_missing_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="unable to find"):
        _compiled(tmp_path / "model.onnx", _config())
    (tmp_path / "model.onnx").write_bytes(b"no graph")
    with pytest.raises(InvalidArgument, match="openvino error"):
        _compiled(tmp_path / "model.onnx", _config())


def test_integers_keep_their_type(tmp_path: Path) -> None:
    """int64 inputs stay int64."""
    doubling = parse_graph("(int64[B, N] x) => (int64[B, N] double) { double = Add(x, x) }")
    onnx.save(doubling, tmp_path / "model.onnx")
    config = _config() | {"output": [{"name": "double"}]}
    large = np.array([[2**28, -1]])
    answer = _compiled(tmp_path / "model.onnx", config).run(["double"], {"x": large})["double"]
    np.testing.assert_array_equal(answer, large * 2)
