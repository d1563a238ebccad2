"""`config.pbtxt`, parsed as Triton parses it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from export.architecture import Graphs
from export.registry import families
from export.triton_config import generator_config, stateless_config
from tests.export.conftest import Bundles
from tests.export.pipeline.test_publish import IMAGE, TEXT
from tests.export.twins import interface

COMMITTED = Path(__file__).parents[2] / "model_repository"


def _parsed(text: str) -> Any:
    return text_format.Parse(text, model_config_pb2.ModelConfig())


def _dims(ports: Any) -> dict[str, list[int]]:
    return {port.name: list(port.dims) for port in ports}


def test_generator_is_decoupled_and_queues_in_triton(bundles: Bundles) -> None:
    admit = bundles("marian", "odd").manifest.graphs["admit"]
    parsed = _parsed(generator_config("es-en", admit))
    assert parsed.name == "es-en"
    assert parsed.backend == "autoregressive"
    assert parsed.max_batch_size == 0
    assert parsed.model_transaction_policy.decoupled
    assert _dims(parsed.input) == {"source_ids": [-1], "prompt_ids": [-1], "options": [1]}
    assert [port.name for port in parsed.input if port.optional] == ["prompt_ids", "options"]
    assert set(_dims(parsed.output)) == {
        "token_ids",
        "sequences",
        "scores",
        "finish_reason",
        "log_probs",
        "top_ids",
        "top_log_probs",
        "alignment",
        "usage",
    }


def test_captioner_takes_pixels_of_its_size() -> None:
    admit = interface("vision-encoder-decoder").lowerings["admit"].graph
    assert _dims(_parsed(generator_config("x", admit)).input)["pixels"] == [32, 32, 3]


def test_stateless_ports_have_no_batch_dimension() -> None:
    parsed = _parsed(stateless_config("clip", IMAGE))
    assert parsed.backend == "onnxruntime"
    assert parsed.max_batch_size == 64
    assert _dims(parsed.input) == {"pixels": [4, 6, 3]}
    assert _dims(parsed.output) == {"embedding": [8]}
    assert parsed.default_model_filename == "model.onnx"


@pytest.mark.parametrize(
    ("precision", "inference"), [("fp32", "f32"), ("bf16", "bf16"), ("int8", "f32")]
)
def test_what_openvino_computes_beside_int8_is_the_same_on_every_processor(
    precision: str, inference: str
) -> None:
    parsed = _parsed(stateless_config("x", IMAGE, runtime="openvino", precision=precision))
    assert parsed.parameters["inference_precision"].string_value == inference


def test_one_number_an_item_is_reshaped() -> None:
    lengths = _parsed(stateless_config("clip-text", TEXT)).input[1]
    assert list(lengths.dims) == [1]
    assert lengths.HasField("reshape")
    assert list(lengths.reshape.shape) == []


@pytest.mark.parametrize("name", families())
def test_every_config_is_complete_and_has_the_ports_of_its_graph(name: str) -> None:
    graphs = interface(name)
    for part, text in configs(graphs).items():
        parsed = _parsed(text)
        (group,) = parsed.instance_group
        assert (group.count, group.kind) == (1, model_config_pb2.ModelInstanceGroup.KIND_CPU)
        assert parsed.HasField("dynamic_batching")
        # Any policy costs half a second: docs/architecture.md.
        assert not parsed.dynamic_batching.HasField("default_queue_policy")
        assert parsed.parameters["intra_op_thread_count"].string_value == "2"
        if part in graphs.lowerings:
            graph = graphs.lowerings[part].graph
            assert [port.name for port in parsed.input] == [port.name for port in graph.inputs]
            assert [port.name for port in parsed.output] == [port.name for port in graph.outputs]


def configs(graphs: Graphs) -> dict[str, str]:
    """Part → the text of its configuration."""
    if "step" in graphs.lowerings:
        admit = graphs.lowerings.get("admit")
        return {"generate": generator_config("x", admit.graph if admit else None)}
    return {key: stateless_config("x", low.graph) for key, low in graphs.lowerings.items()}


@pytest.mark.parametrize(
    "path", sorted(COMMITTED.glob("*/config.pbtxt")), ids=lambda path: path.parent.name
)
def test_committed_configs_are_in_the_text_format_as_it_is_printed(path: Path) -> None:
    text = path.read_text()
    assert text_format.MessageToString(_parsed(text)) == text


def test_instances_and_threads_follow_the_device() -> None:
    for text in (generator_config("x", None, "cuda:1"), stateless_config("x", IMAGE, "cuda:1")):
        parsed = _parsed(text)
        (group,) = parsed.instance_group
        assert (group.count, group.kind) == (1, model_config_pb2.ModelInstanceGroup.KIND_GPU)
        assert list(group.gpus) == [1]
        assert parsed.parameters["intra_op_thread_count"].string_value == "1"
