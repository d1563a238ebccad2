"""BLIP-2, InstructBLIP and PaliGemma: images that are read before the text."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from export.checkpoint.checkpoint import Checkpoint
from export.models.vision_language import blip_2
from export.parity.judge import TOLERANCE
from export.parity.torch_runner import TorchRunner
from export.registry import architecture
from inference.bundle.manifest import Bundle
from inference.engine.engine import EngineCore, decode, final_result
from inference.engine.request import EngineRequest, RequestValidator
from inference.engine.runners.ort.runner import OrtRunner
from inference.engine.runners.ort.sessions import ImageStates
from inference.engine.runners.protocol import Runner
from inference.engine.scheduler import Capacity
from inference.errors import InvalidRequest, TooLong
from tests.export.conftest import Bundles, TwinPair, Twins
from tests.export.models.captions import export_verified, hypotheses_of, unexported
from tests.export.models.interleaved import normalised
from tests.export.oracle import compare
from tests.inference.engine.fake_runner import run_staggered

IMAGE, NEW_TOKENS = 61, 8
SOURCES = ((IMAGE, 9, 4, 12, 30, 1), (IMAGE, 1), (7, IMAGE, 1))
"""With a token for each image."""
MANY = ((9, IMAGE, 4, 12, IMAGE, 1), (IMAGE, 1), (7, 9, 22, 1), (7, *[IMAGE] * 3, 30, 5, 1))
"""The same of a network that reads any number of images."""


def _requests(twin: TwinPair, beams: int) -> list[EngineRequest]:
    manifest, random = unexported(twin).manifest, np.random.default_rng(4)
    rules = manifest.generation.model_copy(
        update={"max_new_tokens": NEW_TOKENS, "num_beams": beams, "num_return_sequences": beams}
    )
    has_many, made = manifest.takes_image_lists, []
    for ids in MANY if has_many else SOURCES:
        images = _read(ids, manifest.source_image)
        shape = (ids.count(IMAGE), *manifest.image.shape) if has_many else manifest.image.shape
        pixels = random.integers(0, 256, shape, np.uint8)
        made.append(EngineRequest(rules, images, pixels if IMAGE in ids else None))
    return made


def _read(ids: tuple[int, ...], images: Any) -> Any:
    """Ids as a model reads them."""
    return np.array(images.expanded([images.token_id if one == IMAGE else one for one in ids]))


def _check(twin: TwinPair, runner: Runner, beams: int) -> None:
    """Asserts that a ragged batch gives what `transformers` gives for each text and its images."""
    requests, image = _requests(twin, beams), twin.prepared.image
    answers: set[tuple[tuple[int, ...], float]] = set()
    for request, found in zip(requests, decode(runner, requests), strict=True):
        shown = {}
        if request.pixels is not None:
            pixels = torch.from_numpy(request.pixels).reshape(-1, *image.shape)
            shown["pixel_values"] = normalised(pixels, image)
        output = twin.reference.generate(
            input_ids=torch.from_numpy(request.source_ids)[None],
            **shown,
            max_new_tokens=NEW_TOKENS,
            num_beams=beams,
            num_return_sequences=beams,
            do_sample=False,
            return_dict_in_generate=True,
            output_scores=True,
        )
        wanted = hypotheses_of(output, request)
        for hypothesis, (tokens, score) in zip(found.hypotheses, wanted, strict=True):
            assert list(hypothesis.token_ids) == tokens
            assert score is None or hypothesis.score == pytest.approx(score, abs=1e-4)
        answers.add((found.hypotheses[0].token_ids, round(found.hypotheses[0].score, 3)))
    assert len(answers) == len(requests)  # texts and images decide


ENCODERS = [("blip-2", "flan-t5"), ("t5gemma2", "odd"), ("t5gemma2", "untied")]


@pytest.mark.parametrize("kind", ENCODERS, ids=" ".join)
@pytest.mark.parametrize("beams", [1, 4])
def test_an_encoder_reads_images_with_their_text(
    kind: tuple[str, str], beams: int, twins: Twins
) -> None:
    twin = twins(*kind)
    _check(twin, TorchRunner(twin.graphs(), unexported(twin).manifest), beams)


@pytest.mark.slow
@pytest.mark.full
@pytest.mark.parametrize("kind", ENCODERS[:2], ids=" ".join)
def test_graphs_with_an_encoder_pass_the_gate(
    kind: tuple[str, str], twins: Twins, tmp_path: Path
) -> None:
    twin = twins(*kind)
    bundle = export_verified(twin, tmp_path)
    for beams in (1, 4):
        _check(twin, OrtRunner(bundle, threads=1), beams)


def test_engine_refuses_other_than_the_tokens_of_the_image(twins: Twins) -> None:
    twin = twins("blip-2", "flan-t5")
    validator, request = RequestValidator(unexported(twin).manifest), _requests(twin, 1)[0]
    assert validator.validate(request).source_length == len(SOURCES[0]) + 2
    short = EngineRequest(request.rules, np.array([IMAGE, 4]), request.pixels)
    with pytest.raises(InvalidRequest, match="source_ids has 1 tokens of images, expected 3"):
        validator.validate(short)
    with pytest.raises(InvalidRequest, match="pixels has shape None"):
        validator.validate(EngineRequest(request.rules, request.source_ids))


def test_an_image_that_no_token_stands_for_changes_nothing(twins: Twins) -> None:
    """A card gets one with texts alone."""
    twin = twins("t5gemma2", "odd")
    admit = twin.graphs().lowerings["admit"].module
    tokens, lengths = torch.tensor([[7, 9, 22], [4, 1, 0]]), torch.tensor([3, 2]).int()
    pixels = torch.full((1, *twin.prepared.image.shape), 90, dtype=torch.uint8)
    with torch.no_grad():
        for one, other in zip(
            admit(tokens, lengths, pixels), admit(tokens, lengths, pixels[:0]), strict=True
        ):
            assert torch.equal(one, other)


def test_engine_takes_as_many_images_as_a_source_has_places(twins: Twins) -> None:
    twin = twins("t5gemma2", "odd")
    validator, requests = RequestValidator(unexported(twin).manifest), _requests(twin, 1)
    for request in requests:
        assert validator.validate(request).source_length == len(request.source_ids)
    first = requests[0]
    with pytest.raises(InvalidRequest, match="source_ids has 8 tokens of images, expected 4"):
        validator.validate(replace(first, pixels=first.pixels[:1]))
    with pytest.raises(InvalidRequest, match="source_ids has 8 tokens of images, expected 0"):
        validator.validate(replace(first, pixels=None))
    with pytest.raises(InvalidRequest, match=r"shape \(2, 15, 14, 3\), expected \(2, 15, 15"):
        validator.validate(replace(first, pixels=first.pixels[:, :, 1:]))
    with pytest.raises(InvalidRequest, match=r"pixels has shape \(\), expected \(15, 15, 3\)"):
        validator.validate(replace(first, pixels=np.zeros((), np.uint8)))


def test_published_files_leave_sizes_out() -> None:
    """`config.json` of blip2-opt-2.7b."""
    section = {"model_type": "opt", "hidden_size": 2560, "num_hidden_layers": 32}
    section |= {"ffn_dim": 10240, "num_attention_heads": 32, "word_embed_proj_dim": 2560}
    values: dict[str, Any] = {"text_config": section | {"vocab_size": 50304}}
    values |= {"vision_config": {}, "qformer_config": {}, "image_token_index": 50265}
    config = architecture("blip-2").read_config(values)
    assert (config.image.layers, config.image.width, config.image.positions) == (39, 1408, 257)
    assert (config.qformer.queries, config.qformer.image_width) == (32, 1408)
    assert (config.text.width, config.image_token) == (2560, 50265)


def test_answers_end_where_the_language_model_says(twins: Twins) -> None:
    """`transformers` reads no `generation_config.json` for them."""
    twin = twins("blip-2", "odd")
    text = {**twin.checkpoint.config["text_config"], "eos_token_id": 50118}
    values = {**twin.checkpoint.config, "text_config": text}
    found = blip_2.generation(Checkpoint(twin.checkpoint.folder, "x", values))
    assert (found["eos_token_id"], found["max_new_tokens"]) == (50118, 20)


INSTRUCTBLIP_IMAGE, PROMPT = 61, (*[61] * 4, 5, 9)


def _request(bundle: Any, instruction: tuple[int, ...] | None) -> EngineRequest:
    rules = bundle.manifest.generation.model_copy(update={"max_new_tokens": 6, "num_beams": 1})
    shape = (1, *bundle.manifest.image.shape)
    pixels = np.random.default_rng(3).integers(0, 256, shape, dtype=np.uint8)
    return EngineRequest(
        rules, None if instruction is None else np.array(instruction), pixels, prompt_ids=PROMPT
    )


def test_an_image_has_another_name_for_another_instruction(twins: Twins) -> None:
    """By which the states of images are kept, and the prefixes of prompts."""
    bundle = unexported(twins("instructblip", "odd"))
    validator = RequestValidator(bundle.manifest)
    requests = [validator.validate(_request(bundle, ids)) for ids in ((9, 4), (30, 2), (9, 4))]
    for names in (
        [one.prefix_ids for one in requests],
        [
            ImageStates.key(one.pixels[0], one.source_ids)
            for one in requests
            if one.pixels is not None
        ],
    ):
        assert names[0] == names[2] != names[1]


@pytest.mark.full
def test_an_image_and_its_prefix_are_kept_for_one_instruction(bundles: Bundles) -> None:
    bundle = bundles("instructblip", "odd")
    runner, validator = OrtRunner(bundle, threads=1), RequestValidator(bundle.manifest)
    core = EngineCore(runner, Capacity(prefix_block_tokens=2, prefix_min_tokens=2))
    found = []
    for instruction, cached in (((9, 4, 5), 0), ((30, 2), 0), ((9, 4, 5), 5)):
        request = validator.validate(_request(bundle, instruction))
        before = core.metrics.prefix_tokens
        (events,) = run_staggered(core, [request], [0])
        assert core.metrics.prefix_tokens - before == cached
        found.append(final_result(events).hypotheses[0].token_ids)
        (alone,) = decode(OrtRunner(bundle, threads=1), [request])
        assert found[-1] == alone.hypotheses[0].token_ids
    assert found[0] == found[2] != found[1]


def test_engine_refuses_an_image_without_or_with_a_long_instruction(twins: Any) -> None:
    twin = twins("instructblip", "odd")
    manifest = unexported(twin).manifest
    validator, bundle = RequestValidator(manifest), unexported(twin)
    valid = validator.validate(_request(bundle, (5, 6)))
    assert (valid.source_length, valid.prompt_tokens) == (4, len(PROMPT))
    with pytest.raises(InvalidRequest, match="source_ids is missing"):
        validator.validate(_request(bundle, None))
    with pytest.raises(InvalidRequest, match="source_ids holds ids outside"):
        validator.validate(_request(bundle, (64,)))
    limit = manifest.limits.max_input_tokens
    with pytest.raises(TooLong, match=f"source_ids has {limit + 1} tokens"):
        validator.validate(replace(_request(bundle, None), source_ids=np.ones(limit + 1, np.int64)))


PALIGEMMA_IMAGE, PALIGEMMA_NEW_TOKENS, CHUNK = 61, 9, 4
PROMPTS = (
    (*[PALIGEMMA_IMAGE] * 4, 2, 7, 9, 12, 30, 5),
    (*[PALIGEMMA_IMAGE] * 4, 2, 5),
    (2, 8, 11, 4, 17, 6, 3),
)


def _check_resumed(bundle: Bundle) -> None:
    """Asserts that a sequence goes on behind its tokens as if it had never stopped.

    Its prompt is longer than a chunk, and nothing of it may be read apart.
    """
    manifest, random = bundle.manifest, np.random.default_rng(4)
    rules = manifest.generation.model_copy(
        update={"max_new_tokens": PALIGEMMA_NEW_TOKENS, "eos_token_ids": (), "num_beams": 1}
    )
    requests = []
    for prompt in PROMPTS:
        shape = (prompt.count(PALIGEMMA_IMAGE) // 4, *manifest.image.shape)
        pixels = random.integers(0, 256, shape, dtype=np.uint8) if shape[0] else None
        requests.append(EngineRequest(rules, prompt_ids=prompt, pixels=pixels))
    runner = OrtRunner(bundle, threads=1)
    whole = [found.hypotheses[0].token_ids for found in decode(runner, requests)]
    assert len(set(whole)) == len(PROMPTS)
    small = Capacity(chunk_tokens=CHUNK, prefill_tokens_beside=CHUNK, prefill_tokens=CHUNK)
    for count in (0, 1, 5):
        resumed = [
            replace(each, rules=rules.model_copy(update={"generated_ids": tokens[:count]}))
            for each, tokens in zip(requests, whole, strict=True)
        ]
        found = decode(runner, resumed, small)
        behind = [each.hypotheses[0].token_ids for each in found]
        assert behind == [tokens[count:] for tokens in whole]


def test_sequences_go_on_behind_a_whole_prompt(bundles: Bundles) -> None:
    _check_resumed(bundles("paligemma", "odd"))


@pytest.mark.slow
@pytest.mark.full
def test_graphs_over_gemma2_pass_the_gate(twins: Twins, tmp_path: Path) -> None:
    """With soft caps and a window, and heads that the operator of the cache rotates itself."""
    _check_resumed(export_verified(twins("paligemma", "gemma2"), tmp_path))


def test_causal_prompts_would_differ(twins: Twins) -> None:
    twin = twins("paligemma", "odd")
    graphs = twin.graphs()
    for module in graphs.lowerings["step"].module.modules():
        if hasattr(module, "heads") and hasattr(module, "pack"):
            module.heads = replace(module.heads, is_prefix_lm=False)
    places = {
        place
        for place, want, got in compare(twin, graphs=graphs)
        if (want - got).abs().max() > TOLERANCE
    }
    assert places == {f"row {row}, {size} tokens at once" for row in range(3) for size in (3, 6)}


def test_paligemma_published_files_leave_sizes_out() -> None:
    """`config.json` of paligemma-3b-pt-224."""
    section = {"model_type": "gemma", "vocab_size": 257216, "num_hidden_layers": 18}
    vision = {"hidden_size": 1152, "intermediate_size": 4304, "num_hidden_layers": 27}
    vision |= {"model_type": "siglip_vision_model", "num_attention_heads": 16, "patch_size": 14}
    values = {"text_config": section, "vision_config": vision, "image_token_index": 257152}
    config = architecture("paligemma").read_config(
        {**values, "projection_dim": 2048, "hidden_size": 2048}
    )
    assert (config.text.width, config.text.layers[0].width, config.text.layers[0].groups) == (
        2048,
        256,
        1,
    )
    assert all(heads.is_prefix_lm for heads in config.text.layers)
