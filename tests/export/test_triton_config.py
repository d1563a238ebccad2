"""`config.pbtxt`, parsed as Triton parses it."""

from __future__ import annotations

from typing import Any

from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from export.triton_config import generator_config, stateless_config
from tests.export.conftest import Bundles
from tests.export.test_publish import IMAGE, TEXT


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


def test_captioner_takes_pixels_of_its_size(bundles: Bundles) -> None:
    admit = bundles("vision-encoder-decoder", "odd").manifest.graphs["admit"]
    assert _dims(_parsed(generator_config("x", admit)).input)["pixels"] == [32, 32, 3]


def test_stateless_ports_have_no_batch_dimension() -> None:
    parsed = _parsed(stateless_config("clip", IMAGE))
    assert parsed.backend == "onnxruntime"
    assert parsed.max_batch_size == 64
    assert _dims(parsed.input) == {"pixels": [4, 6, 3]}
    assert _dims(parsed.output) == {"embedding": [8]}
    assert parsed.default_model_filename == "model.onnx"


def test_one_number_an_item_is_reshaped() -> None:
    lengths = _parsed(stateless_config("clip-text", TEXT)).input[1]
    assert list(lengths.dims) == [1]
    assert lengths.HasField("reshape")
    assert list(lengths.reshape.shape) == []


def test_every_config_is_complete() -> None:
    for text in (generator_config("a", None), stateless_config("b", IMAGE)):
        parsed = _parsed(text)
        (group,) = parsed.instance_group
        assert (group.count, group.kind) == (1, model_config_pb2.ModelInstanceGroup.KIND_CPU)
        assert parsed.HasField("dynamic_batching")
        # Any policy costs half a second: docs/architecture.md.
        assert not parsed.dynamic_batching.HasField("default_queue_policy")
        assert parsed.parameters["intra_op_thread_count"].string_value == "2"
