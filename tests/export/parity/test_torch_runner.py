"""The reference runner returns what the serving one returns: samples, log-probs, alignments."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from export.parity.token_parity import compare_tokens, mixed_requests
from export.parity.torch_runner import TorchRunner, append_rows, rank
from inference.bundle.manifest import Bundle, Growth, State
from inference.engine.engine import decode
from inference.engine.request import EngineRequest
from inference.engine.runners.ort.runner import OrtRunner
from inference.generation import Finished
from tests.export.conftest import Bundles, Twins
from tests.export.parity.test_gate import unexported
from tests.export.sources import source_or_prompt
from tests.export.twin import EXPORTED
from tests.export.twins import generators, has_alignment

MODELS = generators()
ALIGNED = [name for name in MODELS if has_alignment(name)]
WAYS: list[dict[str, Any]] = [
    {"do_sample": True, "temperature": 0.7, "num_return_sequences": 3},
    {"do_sample": True, "top_p": 0.8, "repetition_penalty": 1.3},
    {"do_sample": True, "typical_p": 0.8, "frequency_penalty": 0.4},
    {"repetition_penalty": 1.3, "presence_penalty": 0.5},
    {"num_beams": 3, "num_return_sequences": 2, "repetition_penalty": 1.3},
]


def requests(bundle: Bundle, **options: Any) -> list[EngineRequest]:
    """One for each way, all different."""
    defaults = bundle.manifest.generation
    common = {"num_beams": 1, "num_return_sequences": 1, "max_new_tokens": 10, **options}
    made = []
    for seed, way in enumerate(WAYS):
        random = np.random.default_rng(seed)
        rules = defaults.model_copy(update={**common, "seed": seed, **way})
        made.append(EngineRequest(rules, **source_or_prompt(bundle, random, seed + 2)))
    return made


def both(
    name: str, twins: Twins, bundles: Bundles, **options: Any
) -> tuple[list[Finished], list[Finished]]:
    """Answers of both runners, ours first."""
    bundle = bundles(name, EXPORTED)
    made = requests(bundle, **options)
    served = decode(OrtRunner(bundle, threads=1), made)
    return served, decode(TorchRunner(twins(name, EXPORTED).graphs(), bundle.manifest), made)


@pytest.mark.parametrize("name", MODELS)
def test_samples_and_log_probabilities_agree(name: str, twins: Twins, bundles: Bundles) -> None:
    for found, wanted in zip(*both(name, twins, bundles, top_log_probs=2), strict=True):
        for one, other in zip(found.hypotheses, wanted.hypotheses, strict=True):
            assert one.token_ids == other.token_ids
            assert one.score == pytest.approx(other.score, abs=1e-4)
            assert one.log_probs == pytest.approx(other.log_probs, abs=1e-3)
            assert [[i for i, _ in top] for top in one.top] == [
                [i for i, _ in top] for top in other.top
            ]


def test_checkpoint_that_samples_by_default_is_verified_by_its_best_tokens(
    twins: Twins, bundles: Bundles
) -> None:
    bundle = bundles("gpt2", "odd")
    sampling = bundle.manifest.generation.model_copy(update={"do_sample": True, "top_k": 50})
    manifest = bundle.manifest.model_copy(update={"generation": sampling})
    parity = compare_tokens(twins("gpt2", "odd").graphs(), replace(bundle, manifest=manifest))
    assert parity.compared
    assert parity.differences == []


@pytest.mark.parametrize("name", ALIGNED)
def test_alignments_agree(name: str, twins: Twins, bundles: Bundles) -> None:
    for found, wanted in zip(*both(name, twins, bundles, return_alignment=True), strict=True):
        for one, other in zip(found.hypotheses, wanted.hypotheses, strict=True):
            assert one.alignment.shape == other.alignment.shape
            assert len(one.alignment) == len(one.token_ids)
            assert one.alignment == pytest.approx(other.alignment, abs=1e-4)
            assert one.alignment.sum(axis=1) == pytest.approx(1, abs=1e-4)


@pytest.mark.parametrize("name", ["llava", "bart", "rnn-seq2seq", "paligemma"])
def test_kept_prompts_are_read_once_and_searched_alike(name: str, twins: Twins) -> None:
    twin = twins(name, EXPORTED)
    graphs, manifest = twin.graphs(), unexported(twin).manifest
    calls: list[str] = []

    def counted(key: str, module: Any) -> Callable[..., Any]:
        def call(*feeds: Any) -> Any:
            calls.append(key)
            return module(*feeds)

        return call

    lowerings = {
        key: replace(each, module=counted(key, each.module))
        for key, each in graphs.lowerings.items()
    }
    graphs = replace(graphs, lowerings=lowerings)
    kept, plain = TorchRunner(graphs, manifest, keeps_prompts=True), TorchRunner(graphs, manifest)
    for beams in (1, 4, 1):
        made = mixed_requests(manifest, beams)
        calls.clear()
        wanted = [answer.hypotheses for answer in decode(plain, made)]
        whole = list(calls)
        calls.clear()
        assert [answer.hypotheses for answer in decode(kept, made)] == wanted
        assert "admit" in whole
        if beams == 4:
            assert "admit" not in calls
            assert len(calls) <= len(whole) - len(made)


def test_ranking_is_that_of_a_stable_sort() -> None:
    random = np.random.default_rng(0)
    logits = random.integers(-3, 4, (6, 40)).astype(np.float32)  # many equal scores
    logits[0] = 0
    logits[1, 5:] = -np.inf
    want = np.argsort(-logits, axis=1, kind="stable")[:, :9]
    np.testing.assert_array_equal(rank(logits, 9, None).token_ids, want)


def test_a_group_whose_sequences_have_ended_takes_the_sizes_of_the_next_ones() -> None:
    state = State(
        name="k", growth=Growth.APPEND, dtype="float32", shape=("R", 2, "P", 4),
        step_input="k", step_output="k@",
    )  # fmt: skip
    ended, new = torch.zeros(0, 2, 90, 4), torch.ones(1, 2, 3, 4)
    assert append_rows(ended, new, state).shape == (1, 2, 3, 4)
    assert append_rows(torch.zeros(1, 2, 9, 4), new, state).shape == (2, 2, 9, 4)
