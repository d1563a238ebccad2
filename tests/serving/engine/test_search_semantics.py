"""Greedy and beam search choose what `transformers.generate` chooses, over the same logits.

The model is a small random MarianMT; a FakeRunner asks it for every row's logits from scratch, so
that only the searches are under test, not graphs or caches.
"""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import MarianConfig, MarianMTModel

from serving.engine.decoder import decode
from serving.engine.request import Finished, Request
from serving.generation import Generation
from tests.serving.engine.fake_runner import FakeRunner, History

VOCABULARY, END, PAD = 32, 0, 31


@functools.cache
def marian() -> MarianMTModel:
    """A Marian with every parameter random, and an end token that comes at varying lengths."""
    torch.manual_seed(7)
    config = MarianConfig(
        vocab_size=VOCABULARY, d_model=16, encoder_layers=1, decoder_layers=1,
        encoder_attention_heads=2, decoder_attention_heads=2, encoder_ffn_dim=32,
        decoder_ffn_dim=32, max_position_embeddings=64, pad_token_id=PAD, eos_token_id=END,
        decoder_start_token_id=PAD, forced_eos_token_id=None, num_beams=1,
    )  # fmt: skip
    model = MarianMTModel(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.uniform_(-0.5, 0.5)
        model.final_logits_bias.uniform_(-1, 1)
    return model


@functools.lru_cache(maxsize=100_000)
def marian_logits(source: History, history: History) -> np.ndarray:
    with torch.inference_mode():
        ids = torch.tensor([source or (1,)]), torch.tensor([history])
        logits = marian()(input_ids=ids[0], decoder_input_ids=ids[1]).logits
    return logits[0, -1].numpy()


def expected(source: list[int], rules: Generation) -> list[tuple[list[int], float]]:
    """`transformers.generate`: (generated tokens, score) of each returned sequence.

    Its placeholders for beams that never were (scores of about -1e9) are left out: we return fewer.
    """
    options = rules.model_dump(exclude={"decoder_start_ids", "eos_token_ids"})
    for name in ("bad_words_ids", "suppress_tokens"):
        options[name] = [list(x) if isinstance(x, tuple) else x for x in options[name]] or None
    if rules.num_beams == 1:
        options.pop("early_stopping"), options.pop("length_penalty")
    with torch.inference_mode():
        output = marian().generate(
            torch.tensor([source]), **options, eos_token_id=list(rules.eos_token_ids) or None,
            decoder_start_token_id=rules.decoder_start_ids[0], do_sample=False,
            return_dict_in_generate=True, output_scores=True,
        )  # fmt: skip
    scores = output.sequences_scores.tolist() if rules.num_beams > 1 else [0.0]
    found = zip(output.sequences[:, 1:].tolist(), scores, strict=True)
    return [(_without_padding(tokens, rules), score) for tokens, score in found if score > -1e6]


def _without_padding(tokens: list[int], rules: Generation) -> list[int]:
    ends = [index for index, token in enumerate(tokens) if token in rules.eos_token_ids]
    return tokens[: ends[0] + 1] if ends else tokens


def answer(source: list[int], rules: Generation) -> Finished:
    runner = FakeRunner(marian_logits, VOCABULARY)
    return decode(runner, [Request(rules, source_ids=np.array(source))])[0]


@st.composite
def generations(draw: st.DrawFn) -> Generation:
    beams = draw(st.sampled_from([1, 1, 2, 3, 4]))
    tokens = st.integers(1, VOCABULARY - 2)
    return Generation(
        decoder_start_ids=(PAD,),
        eos_token_ids=draw(st.sampled_from([(END,), (END, 5), (END, 5, 9)])),
        pad_token_id=PAD,
        max_new_tokens=draw(st.integers(1, 12)),
        num_beams=beams,
        num_return_sequences=draw(st.integers(1, beams)),
        length_penalty=draw(st.sampled_from([1.0, 0.0, 0.6, 2.0, -1.0])),
        early_stopping=draw(st.sampled_from([False, True, "never"])),
        no_repeat_ngram_size=draw(st.sampled_from([0, 0, 1, 2, 3])),
        bad_words_ids=tuple(
            draw(st.lists(st.lists(tokens, min_size=1, max_size=3).map(tuple), max_size=4))
        ),
        suppress_tokens=tuple(draw(st.lists(tokens, max_size=3))),
        forced_bos_token_id=draw(st.sampled_from([None, None, 3])),
        forced_eos_token_id=draw(st.sampled_from([None, END])),
    )


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(source=st.lists(st.integers(1, 30), min_size=1, max_size=6), rules=generations())
def test_tokens_and_scores_are_those_of_generate(source: list[int], rules: Generation) -> None:
    rules = rules.model_copy(
        update={"suppress_tokens": tuple(set(rules.suppress_tokens) - {3, END})}
    )
    wanted = expected(source, rules)
    found = answer(source, rules).hypotheses
    assert [list(hypothesis.token_ids) for hypothesis in found] == [one for one, _ in wanted]
    if rules.num_beams > 1:
        scores = [score for _, score in wanted]
        assert [hypothesis.score for hypothesis in found] == pytest.approx(scores, rel=1e-4)
