"""Our engine over the exported graphs against `transformers.generate`."""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from export.parity.graph_runs import torch_run
from export.parity.parity_inputs import Array, Feeds, Probe, observe_decoder
from export.parity.torch_runner import TorchRunner
from export.parity.verify import observe
from export.pipeline.manifest import Request, build_manifest
from inference.bundle.manifest import Bundle
from inference.engine.engine import decode
from inference.engine.request import EngineRequest
from inference.engine.runners.ort.runner import OrtRunner
from inference.engine.runners.protocol import Runner
from inference.generation import Generation
from tests.export.conftest import Bundles, TwinPair, Twins, export_graphs, pair_of
from tests.export.models.captions import Hypotheses, generate
from tests.export.models.interleaved import of_request, prompt_images
from tests.export.oracle import normalised
from tests.export.sources import flattened_patches, source_or_prompt
from tests.export.twin import EXPORTED
from tests.export.twins import generators, make_twin

LENGTHS = (3, 9, 1, 6)
GENERATORS = generators(is_transformers=True)
PENALTIES: dict[str, Any] = {
    "repetition_penalty": 1.4,
    "logit_bias": {7: 1.5, 11: -3.0},
    "min_new_tokens": 5,
}
RULES: dict[str, dict[str, Any]] = {
    "greedy": {"num_beams": 1},
    "beam-4": {"num_beams": 4, "num_return_sequences": 4},
    "beam-3 that stops early": {
        "num_beams": 3,
        "num_return_sequences": 2,
        "early_stopping": True,
        "length_penalty": 0.6,
    },
    "beam-4 without repeats": {
        "num_beams": 4,
        "num_return_sequences": 1,
        "no_repeat_ngram_size": 2,
        "bad_words_ids": ((5,), (7, 9)),
    },
    "renormalised": {
        "num_beams": 4,
        "num_return_sequences": 4,
        "bad_words_ids": tuple((token,) for token in range(5, 25)),
        "renormalize_logits": True,
    },
    "penalised": PENALTIES,
    "penalised beam-4": PENALTIES
    | {"num_beams": 4, "num_return_sequences": 4, "no_repeat_ngram_size": 2},
    "penalised and renormalised": PENALTIES
    | {"num_beams": 3, "num_return_sequences": 3, "no_repeat_ngram_size": 2}
    | {"bad_words_ids": ((5,), (7, 9)), "renormalize_logits": True},
}


@pytest.mark.parametrize("rules", RULES)
@pytest.mark.parametrize("name", GENERATORS)
def test_engine_over_onnx_generates_what_transformers_generates(
    name: str, rules: str, twins: Twins, bundles: Bundles
) -> None:
    twin, bundle = twins(name, "odd"), with_rules(bundles(name, "odd"), RULES[rules])
    check(twin, bundle, OrtRunner(bundle, threads=1))


@pytest.mark.parametrize("rules", ["greedy", "beam-4", "renormalised", "penalised beam-4"])
@pytest.mark.parametrize("name", GENERATORS)
def test_torch_runner_generates_what_transformers_generates(
    name: str, rules: str, twins: Twins, bundles: Bundles
) -> None:
    twin, bundle = twins(name, "odd"), with_rules(bundles(name, "odd"), RULES[rules])
    check(twin, bundle, TorchRunner(twin.graphs(), bundle.manifest))


@pytest.mark.full
@pytest.mark.parametrize("seed", range(1, 4))
@pytest.mark.parametrize("name", GENERATORS)
def test_engine_generates_what_transformers_generates_from_other_weights(
    name: str, seed: int, tmp_path: Path
) -> None:
    """Three more seeds; how many tokens were compared is printed, which `pytest -s` shows."""
    twin = pair_of(name, "odd", tmp_path, make_twin(name, "odd", tmp_path, seed=seed))
    graphs = twin.graphs()
    manifest, _ = build_manifest(Request("twin"), 1, twin.source, graphs)
    export_graphs(graphs, manifest, tmp_path)
    bundle = Bundle(tmp_path / manifest.name, manifest)
    counts = [
        check(twin, changed, OrtRunner(changed, threads=1), seed)
        for changed in (with_rules(bundle, RULES[rules]) for rules in ("greedy", "beam-4"))
    ]
    print(f"{name}, seed {seed}: {sum(counts)} tokens")


def with_rules(bundle: Bundle, rules: dict[str, Any]) -> Bundle:
    """The bundle with these generation parameters."""
    generation = bundle.manifest.generation
    changed = generation.model_copy(update={"max_new_tokens": 12, **rules})
    return replace(bundle, manifest=bundle.manifest.model_copy(update={"generation": changed}))


def check(twin: TwinPair, bundle: Bundle, runner: Runner, seed: int = 3) -> int:
    """Asserts that the engine over a runner returns `transformers`' tokens and scores.

    Args:
        seed: Of what is read.

    Returns:
        How many tokens were compared.
    """
    merged = bundle.manifest.generation
    assert merged is not None
    count = 0
    requests = _requests(bundle, merged, seed)
    for request, answer in zip(requests, decode(runner, requests), strict=True):
        wanted = _transformers(twin, bundle, request, merged)
        assert len(answer.hypotheses) == len(wanted)
        for hypothesis, (tokens, score) in zip(answer.hypotheses, wanted, strict=True):
            assert list(hypothesis.token_ids) == tokens
            assert score is None or hypothesis.score == pytest.approx(score, abs=1e-4)
            count += len(tokens)
    return count


def _requests(bundle: Bundle, rules: Generation, seed: int) -> list[EngineRequest]:
    random = np.random.default_rng(seed)
    return [EngineRequest(rules, **source_or_prompt(bundle, random, length)) for length in LENGTHS]


def _transformers(
    twin: TwinPair, bundle: Bundle, request: EngineRequest, rules: Generation
) -> Hypotheses:
    images = prompt_images(twin)
    if images is not None:
        assert twin.prepared.image is not None
        end = rules.eos_token_ids[0]
        image = twin.prepared.image
        source, prompt = request.source_ids, request.prompt_ids
        inputs = of_request(twin, source, request.pixels, prompt, image, images, end)
    elif request.source_ids is None and request.pixels is None:
        inputs = {"input_ids": torch.tensor([request.prompt_ids])}
    else:
        inputs = {}
        if request.source_ids is not None:
            inputs["input_ids"] = torch.from_numpy(request.source_ids)[None]
        if request.pixels is not None and len(request.pixels):
            assert twin.prepared.image is not None
            pixels = torch.from_numpy(request.pixels)
            pixels = pixels if bundle.manifest.takes_image_lists else pixels[None]
            if pixels.is_floating_point():
                inputs |= flattened_patches(pixels)
            else:
                inputs["pixel_values"] = normalised(pixels, twin.prepared.image)
    return generate(twin, request, **inputs)


@pytest.mark.parametrize("name", ["marian", "llava"])
def test_all_sources_are_admitted_before_the_first_step(name: str, twins: Twins) -> None:
    """The gate loads each graph of a large model once, and not once a case."""
    twin = twins(name, EXPORTED)
    graphs = twin.architecture.graphs(twin.network, twin.prepared.image)
    manifest, _ = build_manifest(Request("twin"), 1, twin.source, graphs)
    called: list[str] = []
    run = torch_run(graphs)

    def record(key: str, feeds: Feeds) -> dict[str, Array]:
        called.append(key)
        return run(key, feeds)

    probe = Probe(8, 8, images=manifest.text_images)
    found = [each.place for each in observe_decoder(record, manifest, probe)]
    assert [key for key, _ in groupby(called)] == ["admit", "step"]
    assert called.count("admit") == 3 + any(place.startswith("chunk") for place in found)


@pytest.mark.parametrize(("name", "positions"), [("led", 48), ("longt5", 16384)])
@pytest.mark.parametrize("traced", [89, 199])
def test_one_source_is_of_several_blocks(
    name: str, positions: int, traced: int, twins: Twins
) -> None:
    """Blocks of published checkpoints are longer than the other sources are."""
    twin = twins(name, EXPORTED)
    graphs = twin.architecture.graphs(twin.network, None)
    manifest, _ = build_manifest(Request("twin"), 1, twin.source, graphs)
    admit = replace(graphs.lowerings["admit"], traced_sizes={"S": traced})
    longer = replace(graphs, lowerings={**graphs.lowerings, "admit": admit})
    places = [each.place for each in observe(longer, Bundle(Path(), manifest), torch_run(graphs))]
    words = {word for place in places for word in place.split()}
    assert {"S=9", f"S={min(traced // 2, positions)}"} <= words


TOP = 3
GIVEN_TOKENS_LENGTHS = (9, 2, 6)
NAMES = ["gpt2", "llama", "gemma3_text"]


def _texts() -> list[tuple[int, ...]]:
    random = np.random.default_rng(8)
    return [tuple(random.integers(1, 60, length).tolist()) for length in GIVEN_TOKENS_LENGTHS]


def _request(bundle: Bundle, prompt: tuple[int, ...], **rules: Any) -> EngineRequest:
    return EngineRequest(bundle.manifest.generation.model_copy(update=rules), prompt_ids=prompt)


def _scoring(bundle: Bundle, text: tuple[int, ...]) -> EngineRequest:
    given = {"given_ids": text[1:], "max_new_tokens": len(text) - 1, "top_log_probs": TOP}
    return _request(bundle, text[:1], **given)


def _check(twin: TwinPair, bundle: Bundle, runner: Runner) -> None:
    """Scored texts share their batch with greedy, sampled and penalised requests, and beams."""
    others = [
        _request(bundle, (5, 6, 7), max_new_tokens=6),
        _request(bundle, (5, 6), max_new_tokens=7, repetition_penalty=1.4),
        _request(bundle, (9,), max_new_tokens=5, do_sample=True, seed=4),
        _request(bundle, (8, 9), max_new_tokens=5, num_beams=3),
    ]
    texts = _texts()
    found = decode(runner, [*(_scoring(bundle, text) for text in texts), *others])
    for text, answer in zip(texts, found, strict=False):
        (hypothesis,) = answer.hypotheses
        assert hypothesis.token_ids == text[1:]
        with torch.no_grad():
            logits = twin.reference(torch.tensor([text])).logits[0, :-1]
        want = logits.log_softmax(dim=-1)
        chosen = want[torch.arange(len(text) - 1), list(text[1:])]
        assert hypothesis.log_probs == pytest.approx(chosen.tolist(), abs=1e-4)
        best = want.topk(TOP, dim=-1)
        for top, ids, values in zip(hypothesis.top, best.indices, best.values, strict=True):
            assert [token for token, _ in top] == ids.tolist()
            assert [value for _, value in top] == pytest.approx(values.tolist(), abs=1e-4)
    alone = decode(runner, others)
    for one, other in zip(found[len(texts) :], alone, strict=True):
        assert [h.token_ids for h in one.hypotheses] == [h.token_ids for h in other.hypotheses]


@pytest.mark.parametrize("name", NAMES)
def test_given_tokens_have_the_log_probabilities_of_transformers(
    name: str, twins: Twins, bundles: Bundles
) -> None:
    twin, bundle = twins(name, EXPORTED), bundles(name, EXPORTED)
    _check(twin, bundle, OrtRunner(bundle, threads=1))


def test_reference_runner_scores_given_tokens_too(twins: Twins, bundles: Bundles) -> None:
    twin, bundle = twins("llama", EXPORTED), bundles("llama", EXPORTED)
    _check(twin, bundle, TorchRunner(twin.graphs(), bundle.manifest))
