"""Log-probabilities of given tokens against `transformers`, teacher-forced."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from export.parity.torch_runner import TorchRunner
from inference.bundle.manifest import Bundle
from inference.engine.engine_core import decode
from inference.engine.runners.ort.runner import OrtRunner
from inference.engine.runners.protocol import Runner
from inference.engine.search.request import EngineRequest
from tests.export.conftest import Bundles, TwinPair, Twins
from tests.export.twin import EXPORTED

TOP = 3
LENGTHS = (9, 2, 6)
NAMES = ["gpt2", "llama", "gemma3_text"]


def _texts() -> list[tuple[int, ...]]:
    random = np.random.default_rng(8)
    return [tuple(random.integers(1, 60, length).tolist()) for length in LENGTHS]


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
