"""Generators over OpenVINO, images included, against `transformers`."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

from export.parity.verify import ParityError, Report, verify
from export.precision import Precision, Runtime
from export.quantization.lower_precision import lower_precision
from export.quantization.quantize_weights import quantize_weights
from export.targets.runtime_choice import check_runtime, time_calls, why_not_in_blocks
from inference.bundle.manifest import Bundle
from inference.engine.engine import EngineCore, decode, final_result
from inference.engine.request import EngineRequest, RequestValidator
from inference.engine.runners.candidates import plain_request
from inference.engine.runners.openvino.compiled_decoder import CompiledDecoder, quantisation_group
from inference.engine.runners.openvino.runner import PagedRunner
from inference.engine.runners.protocol import Prompt
from inference.engine.scheduler import Capacity
from inference.errors import BundleError, SetupError
from inference.generation import Generation
from inference.openvino_core import openvino_core
from tests.export.conftest import Bundles, Twins
from tests.export.parity.test_generate_parity import GENERATORS, RULES, check, with_rules
from tests.inference.engine.fake_runner import run_staggered
from tests.openvino_precisions import require_precision

REFUSED = {
    "t5": "its attention has a bias of relative positions",
    "pix2struct": "its attention has a bias of relative positions",
    "mt5": "its attention has a bias of relative positions",
    "umt5": "its attention has a bias of relative positions",
    "longt5": "its attention has a bias of relative positions",
    "switch_transformers": "its attention has a bias of relative positions",
    "prophetnet": "its attention reads more than its cache",
    "t5gemma2": "its attention reads more than its cache",
    "gemma2": "its attention scores are capped",
    "t5gemma": "its attention scores are capped",
    "git": "its caches begin with the positions of an image",
    **dict.fromkeys(("idefics", "mllama"), "its layers attend to the images of prompts"),
    "paligemma": "its prompts are read in both directions",
    "gemma3": "its images are read in both directions",
}
"""Why OpenVINO's operator cannot decode them; they stay with ONNX Runtime."""
SERVED = [name for name in GENERATORS if name not in REFUSED]


@pytest.mark.parametrize("rules", ["greedy", "beam-4", "penalised beam-4", "renormalised"])
@pytest.mark.parametrize("name", SERVED)
def test_engine_over_blocks_generates_what_transformers_generates(
    name: str, rules: str, twins: Twins, bundles: Bundles
) -> None:
    bundle = with_rules(for_openvino(bundles(name, "odd")), RULES[rules])
    check(twins(name, "odd"), bundle, PagedRunner(bundle, threads=2))


def for_openvino(bundle: Bundle) -> Bundle:
    """The same files, to be decoded with OpenVINO."""
    return replace(bundle, manifest=bundle.manifest.model_copy(update={"runtime": "openvino"}))


@pytest.mark.parametrize("name", GENERATORS)
def test_what_the_operator_lacks_is_refused_before_anything_is_exported(
    name: str, twins: Twins
) -> None:
    graphs = twins(name, "plain").graphs()
    assert why_not_in_blocks(graphs) == REFUSED.get(name)
    if name in REFUSED:
        with pytest.raises(SetupError, match=f"cannot decode this model: {REFUSED[name]}; use"):
            check_runtime(graphs, Runtime.OPENVINO, Precision.FP32)
    else:
        check_runtime(graphs, Runtime.OPENVINO, Precision.FP32)


@pytest.mark.parametrize(
    "name", ["marian", "gpt2", pytest.param("vision-encoder-decoder", marks=pytest.mark.full)]
)
def test_gate_passes_and_int8_stays_near(
    name: str, twins: Twins, bundles: Bundles, tmp_path: Path
) -> None:
    require_precision("int8", is_generator=True)
    config = CONFIGS.get(name, "plain")
    twin, staged = twins(name, config), staged_copy(bundles(name, config), tmp_path)
    report = verify(twin.graphs(), staged)
    assert report.observations > 10
    assert report.tokens["differences"] == []
    manifest = lower_precision(report, twin.graphs(), staged, Precision.INT8)
    assert manifest.states == staged.manifest.states  # 8 bits of the cache are the runtime's
    found = report.int8
    assert found["layers"] == WIDE_LAYERS[name]
    assert 0.98 <= found["least_cosine"] < 1
    assert found["rows_alone"] > 10
    assert found["hypotheses_alone"] == 25


@pytest.mark.parametrize("name", ["gpt2", pytest.param("marian", marks=pytest.mark.full)])
def test_bf16_stays_near_and_does_not_depend_on_neighbours(
    name: str, twins: Twins, bundles: Bundles, tmp_path: Path
) -> None:
    require_precision("bf16", is_generator=True)
    twin, staged = twins(name, "plain"), staged_copy(bundles(name, "plain"), tmp_path)
    update = {"precision": "bf16"}
    staged = replace(staged, manifest=staged.manifest.model_copy(update=update))
    report = Report()
    manifest = lower_precision(report, twin.graphs(), staged, Precision.BF16)
    assert manifest.states == staged.manifest.states
    assert 0.98 <= report.int8["least_cosine"] < 1 - 1e-7
    assert report.int8["rows_alone"] > 10
    assert report.int8["hypotheses_alone"] == 25


CONFIGS = {"marian": "odd"}
"""Its graphs are exported once; the plain twin has no wider layer either."""
WIDE_LAYERS = {"marian": 0, "gpt2": 2, "vision-encoder-decoder": 3}
"""Of the tiny twins, those with 64 inputs or more."""


@pytest.mark.parametrize("name", ["marian", pytest.param("bart", marks=pytest.mark.full)])
def test_bits_of_a_source_do_not_depend_on_a_longer_one(name: str, bundles: Bundles) -> None:
    runner = PagedRunner(for_openvino(bundles(name, "odd")), threads=2)
    random, asked = np.random.default_rng(0), [plain_request(8)]
    sources = [random.integers(0, 50, length) for length in (3, 30, 17, 8)]
    prompts = [Prompt(np.array([1]), source) for source in sources]
    together, tokens = runner.group(1), np.array([4, 5, 6, 7])
    batches = [together.admit(prompts, asked * 4), together.step(tokens, asked * 4)]
    for row, prompt in enumerate(prompts):
        alone = runner.group(1)
        found = [alone.admit([prompt], asked), alone.step(tokens[row : row + 1], asked)]
        for one, batch in zip(found, batches, strict=True):
            assert np.array_equal(one.log_probs[0], batch.log_probs[row])
        alone.release()
    together.release()
    runner.close()


@pytest.mark.parametrize("inputs", [8, 63, 64, 96, 100, 128, 200])
def test_rows_alone_have_the_bits_of_rows_in_a_batch_whatever_a_layers_width(
    inputs: int, tmp_path: Path
) -> None:
    random = np.random.default_rng(0)
    weight = numpy_helper.from_array(random.normal(size=(inputs, 24)).astype(np.float32), "w")
    ports = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["R", size])
        for name, size in (("x", inputs), ("y", 24))
    ]
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    graph = helper.make_graph([node], "layer", ports[:1], ports[1:], [weight])
    path = tmp_path / "layer.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)]), path)
    is_int8 = inputs >= 64
    assert quantize_weights("step", path, Precision.INT8).layers == is_int8
    if is_int8:
        require_precision("int8", is_generator=True)
    model = openvino_core().read_model(path)
    group = quantisation_group(model)
    assert group == (128 if inputs >= 128 else 64)
    options = {
        "INFERENCE_NUM_THREADS": 2,
        "INFERENCE_PRECISION_HINT": "f32",
        "DYNAMIC_QUANTIZATION_GROUP_SIZE": group,
    }
    run = openvino_core().compile_model(model, "CPU", options)
    rows = random.normal(size=(40, inputs)).astype(np.float32)
    alone = [run([row[None]])[0].copy() for row in rows]
    for count in (2, 5, 12, 17, 40):
        assert np.array_equal(run([rows[:count]])[0], np.concatenate(alone[:count]))


@pytest.mark.parametrize("name", ["marian", "gpt2"])
def test_gate_refuses_a_disturbed_weight(
    name: str, twins: Twins, bundles: Bundles, tmp_path: Path
) -> None:
    config = CONFIGS.get(name, "plain")
    twin, staged = twins(name, config), staged_copy(bundles(name, config), tmp_path)
    network = copy.deepcopy(twin.network)
    with torch.no_grad():
        network.decoder.blocks[1].attention.value.weight *= 1.001
    graphs = twin.architecture.graphs(network, twin.prepared.image)
    with pytest.raises(ParityError):
        verify(graphs, staged)


def staged_copy(bundle: Bundle, folder: Path) -> Bundle:
    """The files in a folder of their own, whose graphs may be rewritten."""
    target = folder / bundle.manifest.name
    shutil.copytree(bundle.folder, target)
    return for_openvino(Bundle(target, bundle.manifest))


PAGED_IMAGES_RULES = Generation(pad_token_id=0, max_new_tokens=6)
IMAGE = [61] * 4
CHUNKS = Capacity(
    chunk_tokens=3, prefill_tokens_beside=6, prefix_block_tokens=16, prefix_min_tokens=16
)


class Pictured:
    """A tiny LLaVA over OpenVINO, and requests of its prompts."""

    def __init__(self, bundle: Bundle) -> None:
        self.runner = PagedRunner(bundle, threads=2)
        self._validator = RequestValidator(bundle.manifest)
        shape = bundle.manifest.image.shape
        self.images = np.random.default_rng(5).integers(0, 256, (3, *shape), dtype=np.uint8)

    def request(
        self, ids: Sequence[int], images: Sequence[int] = (), beams: int = 1
    ) -> EngineRequest:
        rules = PAGED_IMAGES_RULES.model_copy(
            update={"num_beams": beams, "num_return_sequences": beams}
        )
        pixels = self.images[list(images)] if images else None
        return self._validator.validate(EngineRequest(rules, prompt_ids=tuple(ids), pixels=pixels))

    def tokens(self, core: EngineCore, asked: EngineRequest) -> list[tuple[int, ...]]:
        (events,) = run_staggered(core, [asked], [0])
        return [tuple(each.token_ids) for each in final_result(events).hypotheses]


@pytest.fixture(scope="module")
def pictured(bundles: Bundles) -> Iterator[Pictured]:
    made = Pictured(for_openvino(bundles("llava", "odd")))
    yield made
    made.runner.close()


def test_tokens_and_scores_do_not_depend_on_neighbours(pictured: Pictured) -> None:
    asked = [
        pictured.request([3, *IMAGE, 5], [0]),
        pictured.request([8, 9, 10]),
        pictured.request([*IMAGE, 4, *IMAGE, 6], [1, 0], beams=3),
        pictured.request([3, *IMAGE, 5], [2]),
        pictured.request([3, *IMAGE, 5, 7, 9, *IMAGE], [2, 1]),
    ]
    alone = [decode(pictured.runner, [each])[0].hypotheses for each in asked]
    assert len({hypotheses[0].score for hypotheses in alone}) == len(asked)
    core = EngineCore(
        pictured.runner, replace(CHUNKS, prefix_bytes=0, chunk_tokens=16, prefill_tokens_beside=16)
    )
    for turns in ([0] * 5, [0, 1, 2, 3, 4], [4, 3, 0, 2, 1]):
        events = run_staggered(core, asked, turns)
        for found, wanted in zip(map(final_result, events), alone, strict=True):
            assert found.hypotheses == wanted


def test_chunks_that_end_within_an_image_change_no_token(pictured: Pictured) -> None:
    asked = pictured.request([3, *IMAGE, 5, *IMAGE, 4, 9], [0, 1])
    wanted = pictured.tokens(EngineCore(pictured.runner, Capacity(prefix_bytes=0)), asked)
    core = EngineCore(pictured.runner, replace(CHUNKS, prefix_bytes=0))
    events = run_staggered(core, [pictured.request([8, 9, 10]), asked], [0, 2])
    assert [tuple(e.token_ids) for e in final_result(events[1]).hypotheses] == wanted


def test_prompts_share_prefixes_and_images_only_where_they_show_the_same(
    pictured: Pictured, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = pictured.runner
    words = [*range(3, 3 + runner.blocks.block_tokens - 5)]
    first = [9, *IMAGE, *words]  # a whole block
    block = len(first)
    asked = [
        (pictured.request([*first, 6, 7], [0]), 0, 1),
        (pictured.request([*first, 8, *IMAGE], [0, 1]), block, 1),  # the first is in the prefix
        (pictured.request([*first, 6, 7], [1]), 0, 0),
        (pictured.request([*first, 5], [2]), 0, 1),
    ]
    core = EngineCore(runner, replace(CHUNKS, chunk_tokens=64, prefill_tokens_beside=64))
    wanted = [
        pictured.tokens(EngineCore(runner, Capacity(prefix_bytes=0)), each) for each, _, _ in asked
    ]
    assert len({each[0] for each in wanted}) > 1
    runner._decoder.images.clear()
    run, encoded = CompiledDecoder.run, []

    def counted(self: CompiledDecoder, key: str, feeds: object) -> object:
        encoded.append(key)
        return run(self, key, feeds)

    monkeypatch.setattr(CompiledDecoder, "run", counted)
    for (each, cached, images), tokens in zip(asked, wanted, strict=True):
        before = core.metrics.prefix_tokens, len(encoded)
        assert pictured.tokens(core, each) == tokens
        assert core.metrics.prefix_tokens - before[0] == cached
        assert len(encoded) - before[1] == images
    core.fail(RuntimeError("the end of this test"))


@pytest.mark.parametrize(
    "name", ["llava", *(pytest.param(n, marks=pytest.mark.full) for n in ("qwen2_vl", "qwen3_vl"))]
)
def test_gate_passes(name: str, twins: Twins, bundles: Bundles, tmp_path: Path) -> None:
    report = verify(twins(name, "odd").graphs(), staged_copy(bundles(name, "odd"), tmp_path))
    assert report.observations > 10
    assert report.tokens["differences"] == []


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("idefics", "its layers attend to images"),
        ("paligemma", "its prompts are read in both directions"),
        ("gemma3", "its images are read in both directions"),
    ],
)
def test_bundles_that_it_cannot_serve_are_refused_by_name(
    name: str, reason: str, bundles: Bundles
) -> None:
    with pytest.raises(BundleError, match=f"{reason}: export it with --runtime onnxruntime"):
        PagedRunner(for_openvino(bundles(name, "odd")), threads=2)


def test_auto_times_both_runtimes_with_an_image_in_each_prompt(bundles: Bundles) -> None:
    bundle = bundles("llava", "odd")
    found = time_calls({"onnxruntime": bundle, "openvino": for_openvino(bundle)}, rounds=1)
    assert {cell: set(times) for cell, times in found.items()} == {
        f"greedy, {count} sequences": {"onnxruntime", "openvino"} for count in (1, 8)
    }
