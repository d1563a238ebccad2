"""BLIP-2: an encoder that reads an image with its text; what its files say and leave out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from export.checkpoint.checkpoint import Checkpoint
from export.models.vision_language import blip_2
from export.parity.torch_runner import TorchRunner
from export.registry import architecture
from inference.engine.engine_core import decode
from inference.engine.runners.ort.runner import OrtRunner
from inference.engine.runners.protocol import Runner
from inference.engine.search.request import EngineRequest
from inference.engine.validation import RequestValidator
from inference.errors import InvalidRequest
from tests.export.conftest import TwinPair, Twins
from tests.export.models.captions import export_verified, hypotheses_of, unexported
from tests.export.models.interleaved import normalised

IMAGE, NEW_TOKENS = 61, 8
SOURCES = ((IMAGE, IMAGE, IMAGE, 9, 4, 12, 30, 1), (IMAGE, IMAGE, IMAGE, 1), (7, *[IMAGE] * 3, 1))


def _requests(twin: TwinPair, beams: int) -> list[EngineRequest]:
    manifest, random = unexported(twin).manifest, np.random.default_rng(4)
    rules = manifest.generation.model_copy(
        update={"max_new_tokens": NEW_TOKENS, "num_beams": beams, "num_return_sequences": beams}
    )
    return [
        EngineRequest(rules, np.array(ids), random.integers(0, 256, manifest.image.shape, np.uint8))
        for ids in SOURCES
    ]


def _check(twin: TwinPair, runner: Runner, beams: int) -> None:
    """Asserts that a ragged batch gives what `transformers` gives for each text and image."""
    requests, image = _requests(twin, beams), twin.prepared.image
    answers: set[tuple[tuple[int, ...], float]] = set()
    for request, found in zip(requests, decode(runner, requests), strict=True):
        output = twin.reference.generate(
            input_ids=torch.from_numpy(request.source_ids)[None],
            pixel_values=normalised(torch.from_numpy(request.pixels), image)[None],
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
    assert len(answers) == len(SOURCES)  # texts and images decide


@pytest.mark.parametrize("beams", [1, 3])
def test_an_encoder_reads_an_image_with_its_text(beams: int, twins: Twins) -> None:
    twin = twins("blip-2", "flan-t5")
    _check(twin, TorchRunner(twin.graphs(), unexported(twin).manifest), beams)


@pytest.mark.slow
@pytest.mark.full
def test_graphs_with_an_encoder_pass_the_gate(twins: Twins, tmp_path: Path) -> None:
    twin = twins("blip-2", "flan-t5")
    bundle = export_verified(twin, tmp_path)
    for beams in (1, 3):
        _check(twin, OrtRunner(bundle, threads=1), beams)


def test_engine_refuses_other_than_the_tokens_of_the_image(twins: Twins) -> None:
    twin = twins("blip-2", "flan-t5")
    validator, request = RequestValidator(unexported(twin).manifest), _requests(twin, 1)[0]
    assert validator.validate(request).source_length == len(SOURCES[0])
    short = EngineRequest(request.rules, np.array([IMAGE, 4]), request.pixels)
    with pytest.raises(InvalidRequest, match="source_ids has 1 tokens of an image, expected 3"):
        validator.validate(short)
    with pytest.raises(InvalidRequest, match="pixels has shape None"):
        validator.validate(EngineRequest(request.rules, request.source_ids))


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
