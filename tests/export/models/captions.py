"""Captions of random images by our engine and by `transformers`' own `generate`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from export.parity.judge import TOLERANCE
from export.parity.verify import verify
from export.pipeline.manifest import Request, build_manifest
from inference.bundle.manifest import Bundle, Role
from inference.engine.engine import decode
from inference.engine.request import EngineRequest
from inference.engine.runners.protocol import Runner
from tests.export.conftest import TwinPair, export_graphs
from tests.export.oracle import normalised

Hypotheses = list[tuple[list[int], float | None]]
"""(generated tokens, score) of one image, best first; scores of beams only."""

PROMPTS: tuple[tuple[int, ...], ...] = ((), (5, 9, 7), (11,), ())
RULES: dict[str, dict[str, Any]] = {
    "greedy": {"num_beams": 1},
    "beam-4": {"num_beams": 4, "num_return_sequences": 4},
    "penalised beam-3": {
        "num_beams": 3,
        "num_return_sequences": 2,
        "repetition_penalty": 1.4,
        "no_repeat_ngram_size": 2,
        "length_penalty": 0.6,
    },
}


def unexported(twin: TwinPair) -> Bundle:
    """A bundle without files, for the runner over PyTorch."""
    manifest, _ = build_manifest(Request("twin"), 1, twin.source, twin.graphs())
    return Bundle(Path("unexported"), manifest)


def export_verified(twin: TwinPair, folder: Path) -> Bundle:
    """A twin's graphs in a folder, which equal its network."""
    manifest = unexported(twin).manifest
    export_graphs(twin.graphs(), manifest, folder)
    bundle = Bundle(folder / manifest.name, manifest)
    assert verify(twin.graphs(), bundle).worst_difference < TOLERANCE
    return bundle


def requests(bundle: Bundle, rules: dict[str, Any]) -> list[EngineRequest]:
    """An image for each of `PROMPTS`, to be captioned from it."""
    merged = bundle.manifest.generation.model_copy(update={"max_new_tokens": 12, **rules})
    port = bundle.manifest.graphs["admit"].input(Role.PIXELS)
    shape = [int(size) for size in port.shape[1:]]
    random = np.random.default_rng(5)
    return [
        EngineRequest(merged, None, random.integers(0, 256, shape, dtype=np.uint8), prompt)
        for prompt in PROMPTS
    ]


def generated(runner: Runner, given: list[EngineRequest]) -> list[Hypotheses]:
    """Ours, all requests in one batch."""
    return [
        [(list(found.token_ids), found.score) for found in answer.hypotheses]
        for answer in decode(runner, given)
    ]


def wanted(twin: TwinPair, request: EngineRequest) -> Hypotheses:
    """Of `transformers`, the image alone."""
    image = twin.prepared.image
    pixels = normalised(torch.from_numpy(request.pixels)[None], image)
    return generate(twin, request, pixel_values=pixels, **_prompt(twin, request))


def check_captions(twin: TwinPair, bundle: Bundle, runner: Runner, rules: dict[str, Any]) -> None:
    """Asserts that tokens are equal, and scores of beams within 1e-4."""
    given = requests(bundle, rules)
    for request, ours in zip(given, generated(runner, given), strict=True):
        theirs = wanted(twin, request)
        assert [tokens for tokens, _ in ours] == [tokens for tokens, _ in theirs]
        for (_, score), (_, other) in zip(ours, theirs, strict=True):
            assert other is None or (score is not None and abs(score - other) < 1e-4)


def _prompt(twin: TwinPair, request: EngineRequest) -> dict[str, torch.Tensor]:
    """The decoder's first tokens as each kind of model takes them."""
    if not request.prompt_ids:
        return {}
    model_type = twin.checkpoint.config["model_type"]
    if model_type == "blip":  # its `generate` replaces the first token and drops the last one
        return {"input_ids": torch.tensor([[*request.decoder_ids, request.rules.eos_token_ids[0]]])}
    name = "decoder_input_ids" if model_type == "vision-encoder-decoder" else "input_ids"
    return {name: torch.tensor([request.decoder_ids])}


def generate(twin: TwinPair, request: EngineRequest, **inputs: Any) -> Hypotheses:
    """Of `transformers`, from its inputs by the rules of a request; scores only of beams."""
    rules = request.rules
    output = twin.reference.generate(
        **inputs,
        do_sample=False,
        num_beams=rules.num_beams,
        num_return_sequences=rules.num_return_sequences,
        max_new_tokens=rules.max_new_tokens,
        length_penalty=rules.length_penalty,
        early_stopping=rules.early_stopping,
        no_repeat_ngram_size=rules.no_repeat_ngram_size,
        renormalize_logits=rules.renormalize_logits,
        repetition_penalty=rules.repetition_penalty,
        min_new_tokens=rules.min_new_tokens or None,
        sequence_bias={(token,): bias for token, bias in rules.logit_bias.items()} or None,
        bad_words_ids=[list(words) for words in rules.bad_words_ids] or None,
        return_dict_in_generate=True,
        output_scores=True,
    )
    return hypotheses_of(output, request)


def hypotheses_of(output: Any, request: EngineRequest) -> Hypotheses:
    """(generated tokens, score) of what `generate` returned; the score only for beams."""
    scores = output.sequences_scores.tolist() if request.rules.num_beams > 1 else [None]
    return [
        (_after_prompt(sequence, request), score)
        for sequence, score in zip(output.sequences.tolist(), scores, strict=True)
    ]


def _after_prompt(sequence: list[int], request: EngineRequest) -> list[int]:
    """Generated tokens, without start tokens, prompt and padding."""
    tokens = sequence[len(request.decoder_ids) :]
    ends = [place for place, token in enumerate(tokens) if token in request.rules.eos_token_ids]
    return tokens[: ends[0] + 1] if ends else tokens
