"""Bahdanau's translator through the engine, against a stateless beam search.

The twin's oracle is the paper in numpy (`bahdanau_paper`); `test_twins` compares the networks, this
file the engine's use of the graphs: states that are replaced, rows that move between beams,
alignments that follow them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from numpy.typing import NDArray

from export.layers.recurrence.cells import GatedUnit
from export.parity.graph_runs import bundle_path
from export.parity.torch_runner import TorchRunner
from inference.bundle.manifest import Bundle, Growth, Role
from inference.engine.engine import decode
from inference.engine.request import EngineRequest
from inference.engine.runners.ort.runner import OrtRunner
from inference.engine.runners.protocol import Runner
from inference.generation import Finished, Generation
from tests.export.conftest import Bundles, TwinPair, Twins
from tests.export.models.recurrent_paper import Paper

CONFIG = "odd"
START, END = 2, 0
LENGTHS = (3, 9, 1, 6)
MAX_NEW_TOKENS = 12


@pytest.fixture(scope="module")
def twin(twins: Twins) -> TwinPair:
    return twins("bahdanau", CONFIG)


@pytest.fixture(scope="module")
def bundle(bundles: Bundles) -> Bundle:
    return bundles("bahdanau", CONFIG)


def _sources() -> list[NDArray[np.int64]]:
    random = np.random.default_rng(3)
    return [random.integers(0, 64, length) for length in LENGTHS]


def _rules(bundle: Bundle, **given: Any) -> Generation:
    rules = bundle.manifest.generation
    changed = {"max_new_tokens": MAX_NEW_TOKENS, "return_alignment": True, **given}
    return rules.model_copy(update=changed)


def _answers(runner: Runner, rules: Generation) -> list[Finished]:
    return decode(runner, [EngineRequest(rules, source_ids=source) for source in _sources()])


def _runners(twin: TwinPair, bundle: Bundle) -> list[Runner]:
    return [OrtRunner(bundle, threads=1), TorchRunner(twin.graphs(), bundle.manifest)]


Found = tuple[tuple[int, ...], float]
"""Generated tokens, sum of their log-probabilities."""


def naive_beams(paper: Paper, source: list[int], width: int) -> list[Found]:
    """The best finished hypotheses, every score computed anew from the whole history.

    As `transformers` does: of the 2 x width best continuations an end counts among the first
    `width`; the search ends when the best running one cannot beat the worst finished.
    """
    running: list[Found] = [((), 0.0)]
    finished: list[Found] = []
    for length in range(1, MAX_NEW_TOKENS + 1):
        grown = [
            ((*tokens, word), total + score)
            for tokens, total in running
            for word, score in enumerate(log_probs(paper, source, tokens))
        ]
        best = sorted(grown, key=lambda found: -found[1])[: 2 * width]
        is_last = length == MAX_NEW_TOKENS
        ended = [found for found in best[:width] if found[0][-1] == END or is_last]
        finished = sorted(finished + ended, key=mean, reverse=True)[:width]
        running = [found for found in best if found[0][-1] != END][:width]
        if len(finished) == width and running[0][1] / length <= mean(finished[-1]):
            break
    return finished


def mean(found: Found) -> float:
    return found[1] / len(found[0])


def log_probs(paper: Paper, source: list[int], tokens: tuple[int, ...]) -> NDArray[np.float64]:
    logits = paper.decode(source, (START, *tokens))[0][-1]
    return logits - logits.max() - np.log(np.exp(logits - logits.max()).sum())


def test_beams_equal_those_of_a_stateless_search(twin: TwinPair, bundle: Bundle) -> None:
    rules = _rules(bundle, num_beams=4, num_return_sequences=4, return_alignment=False)
    wanted = [naive_beams(twin.reference, source.tolist(), 4) for source in _sources()]
    for runner in _runners(twin, bundle):
        for answer, best in zip(_answers(runner, rules), wanted, strict=True):
            given = [(h.token_ids, h.score) for h in answer.hypotheses]
            assert [tokens for tokens, _ in given] == [tokens for tokens, _ in best]
            assert [score for _, score in given] == pytest.approx(list(map(mean, best)), abs=1e-4)


@pytest.mark.parametrize("beams", [1, 4])
def test_alignments_follow_their_hypotheses(beams: int, twin: TwinPair, bundle: Bundle) -> None:
    """A row's attention must be that of its own history, whatever the origin of its beams."""
    rules = _rules(bundle, num_beams=beams, num_return_sequences=beams)
    for runner in _runners(twin, bundle):
        for source, answer in zip(_sources(), _answers(runner, rules), strict=True):
            for hypothesis in answer.hypotheses:
                history = (START, *hypothesis.token_ids[:-1])
                _, wanted = twin.reference.decode(source.tolist(), history)
                assert hypothesis.alignment.shape == wanted.shape
                assert np.abs(hypothesis.alignment - wanted).max() < 1e-5


def test_alignment_is_returned_on_request_only(twin: TwinPair, bundle: Bundle) -> None:
    for runner in _runners(twin, bundle):
        answers = _answers(runner, _rules(bundle, return_alignment=False))
        assert all(hypothesis.alignment is None for a in answers for hypothesis in a.hypotheses)


@pytest.mark.parametrize("beams", [1, 3])
def test_prompt_goes_token_by_token(beams: int, twin: TwinPair, bundle: Bundle) -> None:
    """A forced prefix continues like the same generated prefix."""
    rules = _rules(bundle, num_beams=beams, return_alignment=False)
    prompts = [(5,), (), (7, 9, 11), (4, 4)]
    for runner in _runners(twin, bundle):
        requests = [
            EngineRequest(rules, source_ids=source, prompt_ids=prompt)
            for source, prompt in zip(_sources(), prompts, strict=True)
        ]
        for request, answer in zip(requests, decode(runner, requests), strict=True):
            tokens = answer.hypotheses[0].token_ids
            history = (START, *request.prompt_ids, *tokens[:-1])
            logits, _ = twin.reference.decode(request.source_ids.tolist(), history)
            scores = logits[len(request.prompt_ids) :]
            if beams == 1:
                assert scores.argmax(axis=1).tolist() == list(tokens)
            total = sum(
                row[token] - row.max() - np.log(np.exp(row - row.max()).sum())
                for row, token in zip(scores, tokens, strict=True)
            )
            assert answer.hypotheses[0].score == pytest.approx(total / len(tokens), abs=1e-4)


def test_answers_are_the_same_alone_and_together(bundle: Bundle) -> None:
    rules = _rules(bundle, num_beams=4, num_return_sequences=4)
    runner = OrtRunner(bundle, threads=1)
    together = _answers(runner, rules)
    for source, answer in zip(_sources(), together, strict=True):
        (alone,) = decode(runner, [EngineRequest(rules, source_ids=source)])
        for one, other in zip(alone.hypotheses, answer.hypotheses, strict=True):
            assert one.token_ids == other.token_ids
            assert np.abs(one.alignment - other.alignment).max() < 1e-6


def test_manifest_calls_states_by_their_growth(bundle: Bundle) -> None:
    manifest = bundle.manifest
    growths = {state.name: state.growth for state in manifest.states}
    assert growths == {
        "state": Growth.REPLACE, "annotations": Growth.HOLD, "keys": Growth.HOLD
    }  # fmt: skip
    step = manifest.graphs["step"]
    assert step.max_tokens_per_call == 1
    emitted = step.output(Role.EMIT)
    assert emitted.shape == ("R", "S")
    assert manifest.alignment.over == "tokens"


def test_encoder_is_one_recurrent_operator_with_lengths(bundle: Bundle) -> None:
    graph = onnx.load(str(bundle_path(bundle, "admit"))).graph
    (node,) = [node for node in graph.node if node.op_type == "GRU"]
    values = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    assert values["direction"] == b"bidirectional"
    assert values["linear_before_reset"] == 0
    assert node.input[4] == "source"
    assert "Loop" not in {node.op_type for node in graph.node}


def test_unit_is_not_torchs() -> None:
    """The same weights in `torch.nn.GRUCell`, its update gate inverted, give another result."""
    unit = GatedUnit(5, 4)
    cell = torch.nn.GRUCell(5, 4)
    update, reset, new = unit.input.weight.split(4)
    with torch.no_grad():
        cell.weight_ih.copy_(torch.cat([reset, -update, new]))
        update, reset = unit.gates.weight.split(4)
        cell.weight_hh.copy_(torch.cat([reset, -update, unit.candidate.weight]))
        update, reset, new = unit.input.bias.split(4)
        cell.bias_ih.copy_(torch.cat([reset, -update, new]))
        cell.bias_hh.zero_()
    x, state = torch.randn(3, 5), torch.randn(3, 4)
    zero = torch.zeros(3, 4)
    with torch.no_grad():
        assert torch.allclose(unit(unit.input(x), zero), cell(x, zero), atol=1e-6)
        assert not torch.allclose(unit(unit.input(x), state), cell(x, state), atol=1e-3)


def test_bundle_without_alignment_keeps_its_tokens(twin: TwinPair, bundle: Bundle) -> None:
    """Emitted attention does not change the tokens."""
    step = bundle.manifest.graphs["step"]
    silent = step.model_copy(update={"outputs": step.outputs[:-1]})
    graphs = {**bundle.manifest.graphs, "step": silent}
    muted = replace(bundle, manifest=bundle.manifest.model_copy(update={"graphs": graphs}))
    rules = _rules(bundle, num_beams=4, return_alignment=False)
    with_output, without = (_answers(OrtRunner(each, threads=1), rules) for each in (bundle, muted))
    for one, other in zip(with_output, without, strict=True):
        assert one.hypotheses[0].token_ids == other.hypotheses[0].token_ids
