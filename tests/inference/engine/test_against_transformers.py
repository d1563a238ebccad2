"""Exported Marian twins decoded by the engine: token for token the result of `transformers`."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import MarianMTModel

from export.graphs.source_model import SourceModel
from export.graphs.to_onnx import to_onnx
from inference.bundle.manifest import Bundle, Limits
from inference.engine.engine_core import EngineCore, decode, final_result
from inference.engine.runners.ort.runner import OrtRunner
from inference.engine.scheduler import Capacity
from inference.engine.search.request import EngineRequest
from inference.engine.state.device import Device
from inference.generation import Generation
from inference.sequences import Finished
from tests.export.twins import make_twin, randomise
from tests.inference.engine.fake_runner import run_staggered
from tests.inference.tiny_models import make_manifest

VARIED = {"plain": (2, 3.5), "odd": (3, 1.0), "separate-tables": (7, 3.0)}
"""Configuration → seed and bias of the end token, so that ends are early, late or missing."""


@dataclasses.dataclass(frozen=True)
class Twin:
    theirs: MarianMTModel
    ours: OrtRunner
    rules: Generation

    def requests(self, beams: int, count: int = 24) -> list[EngineRequest]:
        rng = np.random.default_rng(beams)
        rules = self.rules.model_copy(update={"num_beams": beams, "num_return_sequences": beams})
        sources = [rng.integers(1, 49, rng.integers(1, 25)) for _ in range(count)]
        return [EngineRequest(rules, source_ids=source) for source in sources]


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(n, marks=() if n == "separate-tables" else pytest.mark.full) for n in VARIED
    ],
)
def checkpoint(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[MarianMTModel, Bundle]:
    folder = tmp_path_factory.mktemp("twin")
    theirs = make_twin("marian", request.param, folder)
    assert isinstance(theirs, MarianMTModel)
    seed, end_bias = VARIED[request.param]
    randomise(theirs, seed)
    with torch.no_grad():
        theirs.final_logits_bias[0, 0] += end_bias
    theirs.save_pretrained(folder)
    return theirs, exported(folder)


@pytest.fixture
def twin(checkpoint: tuple[MarianMTModel, Bundle], device: Device) -> Iterator[Twin]:
    theirs, bundle = checkpoint
    runner = OrtRunner(bundle, threads=1, device=device)
    start = theirs.config.decoder_start_token_id
    rules = Generation(
        decoder_start_ids=(start,),
        eos_token_ids=(0,),
        pad_token_id=start,
        max_new_tokens=20,
        bad_words_ids=((start,),),
        forced_eos_token_id=0,
    )
    yield Twin(theirs, runner, rules)
    runner.close()


def exported(checkpoint_folder: Path) -> Bundle:
    """The graphs that generation runs, and a manifest of them; `align` is tested elsewhere."""
    model = SourceModel.open(checkpoint_folder)
    graphs = model.graphs()
    lowerings = {key: one for key, one in graphs.lowerings.items() if key != "align"}
    folder = checkpoint_folder / "bundle"
    folder.mkdir()
    for lowering in lowerings.values():
        to_onnx(lowering, folder / lowering.graph.file)
    described = {key: lowering.graph for key, lowering in lowerings.items()}
    size = model.configuration.vocabulary_size
    fields = {"states": graphs.states, "limits": Limits(), "vocabulary_size": size}
    manifest = make_manifest("twin", "translate", described, **fields)
    return Bundle(folder, manifest)


def generated(twin: Twin, request: EngineRequest) -> list[tuple[list[int], float]]:
    """(tokens, score) of each sequence that `transformers.generate` returns."""
    rules = request.rules
    with torch.inference_mode():
        output = twin.theirs.generate(
            torch.from_numpy(request.source_ids)[None],
            num_beams=rules.num_beams, num_return_sequences=rules.num_return_sequences,
            max_new_tokens=rules.max_new_tokens, bad_words_ids=[[rules.pad_token_id]],
            forced_eos_token_id=rules.forced_eos_token_id, do_sample=False,
            return_dict_in_generate=True, output_scores=True,
        )  # fmt: skip
    sequences = [tokens[: tokens.index(0) + 1] for tokens in output.sequences[:, 1:].tolist()]
    if rules.num_beams > 1:
        return list(zip(sequences, output.sequences_scores.tolist(), strict=True))
    scores = [logits.log_softmax(-1)[0] for logits in output.scores]
    total = sum(float(row[token]) for row, token in zip(scores, sequences[0], strict=True))
    return [(sequences[0], total / len(sequences[0]))]


def staggered(twin: Twin, requests: list[EngineRequest]) -> list[Finished]:
    return list(map(final_result, run_staggered(EngineCore(twin.ours, Capacity()), requests)))


def tokens(finished: Finished) -> list[list[int]]:
    return [list(hypothesis.token_ids) for hypothesis in finished.hypotheses]


@pytest.mark.slow
@pytest.mark.parametrize("beams", [1, 4])
def test_batched_tokens_and_scores_are_those_of_generate(twin: Twin, beams: int) -> None:
    requests = twin.requests(beams)
    answers = decode(twin.ours, requests)
    for request, found in zip(requests, answers, strict=True):
        wanted = generated(twin, request)
        assert tokens(found) == [sequence for sequence, _ in wanted]
        scores = [score for _, score in wanted]
        if beams > 1:  # greedy scores of `transformers` include the bans, ours do not
            assert [h.score for h in found.hypotheses] == pytest.approx(scores, rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("beams", [1, 4])
def test_tokens_do_not_depend_on_the_batch_or_the_time_of_admission(twin: Twin, beams: int) -> None:
    requests = twin.requests(beams)
    together = [tokens(found) for found in decode(twin.ours, requests)]
    alone = [tokens(decode(twin.ours, [request])[0]) for request in requests]
    joining = [tokens(found) for found in staggered(twin, requests)]
    assert together == alone == joining


@pytest.mark.slow
def test_tokens_do_not_depend_on_other_widths_in_the_engine(twin: Twin) -> None:
    mixed = [*twin.requests(1, 6), *twin.requests(4, 6), *twin.requests(2, 6)]
    assert [tokens(found) for found in staggered(twin, mixed)] == [
        tokens(decode(twin.ours, [request])[0]) for request in mixed
    ]


@pytest.mark.slow
def test_twin_exercises_the_search(twin: Twin) -> None:
    lengths = {len(tokens(found)[0]) for found in decode(twin.ours, twin.requests(1))}
    assert len(lengths) > 3
