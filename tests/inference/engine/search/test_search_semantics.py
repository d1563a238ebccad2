"""Greedy and beam search choose what `transformers.generate` chooses, over the same logits.

The models are a small random MarianMT and a GPT-2; a FakeRunner computes each row's logits with
them from scratch, so that only the searches are under test, not graphs or caches.
"""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import GPT2Config, GPT2LMHeadModel, MarianConfig, MarianMTModel

from inference.engine.engine_core import decode
from inference.engine.search.request import EngineRequest
from inference.generation import Generation
from inference.sequences import Finished
from tests.inference.engine.fake_runner import FakeRunner, History

VOCABULARY, END, PAD = 32, 0, 31


@functools.cache
def marian() -> MarianMTModel:
    """A Marian with every parameter random, and an end token at varying lengths."""
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


@functools.cache
def gpt2() -> GPT2LMHeadModel:
    """A GPT-2 with every parameter random."""
    torch.manual_seed(11)
    config = GPT2Config(
        vocab_size=VOCABULARY, n_positions=64, n_embd=16, n_layer=1, n_head=2, bos_token_id=PAD,
        eos_token_id=END, pad_token_id=PAD, tie_word_embeddings=False,
    )  # fmt: skip
    model = GPT2LMHeadModel(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.uniform_(-0.7, 0.7)
    return model


@functools.lru_cache(maxsize=100_000)
def gpt2_logits(source: History, history: History) -> np.ndarray:
    with torch.inference_mode():
        return gpt2()(input_ids=torch.tensor([history])).logits[0, -1].numpy()


SAME_NAMES = (
    "pad_token_id", "max_new_tokens", "num_beams", "num_return_sequences", "no_repeat_ngram_size",
    "forced_bos_token_id", "forced_eos_token_id", "min_new_tokens", "repetition_penalty",
    "renormalize_logits",
)  # fmt: skip


def generated(
    model: MarianMTModel | GPT2LMHeadModel, prompt: list[int], rules: Generation
) -> list[tuple[list[int], float]]:
    """`transformers.generate`: (generated tokens, score) of each returned sequence.

    Its placeholders for missing beams (scores of about -1e9) are dropped: we return fewer.
    """
    options = rules.model_dump(include=set(SAME_NAMES))
    options["bad_words_ids"] = [list(word) for word in rules.bad_words_ids] or None
    options["suppress_tokens"] = list(rules.suppress_tokens) or None
    options["sequence_bias"] = {(token,): bias for token, bias in rules.logit_bias.items()} or None
    if rules.num_beams > 1:
        options |= rules.model_dump(include={"early_stopping", "length_penalty"})
    if rules.decoder_start_ids:
        options["decoder_start_token_id"] = rules.decoder_start_ids[0]
    ids = torch.tensor([prompt])
    with torch.inference_mode():
        output = model.generate(
            ids, attention_mask=torch.ones_like(ids), **options,
            eos_token_id=list(rules.eos_token_ids) or None, do_sample=False,
            return_dict_in_generate=True, output_scores=True,
        )  # fmt: skip
    start = 1 if rules.decoder_start_ids else len(prompt)
    scores = output.sequences_scores.tolist() if rules.num_beams > 1 else [0.0]
    found = zip(output.sequences[:, start:].tolist(), scores, strict=True)
    return [(_without_padding(tokens, rules), score) for tokens, score in found if score > -1e6]


def _without_padding(tokens: list[int], rules: Generation) -> list[int]:
    ends = [index for index, token in enumerate(tokens) if token in rules.eos_token_ids]
    return tokens[: ends[0] + 1] if ends else tokens


def translated(source: list[int], rules: Generation) -> Finished:
    runner = FakeRunner(marian_logits, VOCABULARY)
    return decode(runner, [EngineRequest(rules, source_ids=np.array(source))])[0]


def continued(prompt: list[int], rules: Generation) -> Finished:
    runner = FakeRunner(gpt2_logits, VOCABULARY)
    return decode(runner, [EngineRequest(rules, prompt_ids=tuple(prompt))])[0]


def assert_alike(found: Finished, wanted: list[tuple[list[int], float]], beams: int) -> None:
    tokens = [list(hypothesis.token_ids) for hypothesis in found.hypotheses]
    assert tokens == [one for one, _ in wanted]
    if beams > 1:  # `transformers` scores no greedy sequence
        scores = [score for _, score in wanted]
        ours = [hypothesis.score for hypothesis in found.hypotheses]
        assert ours == pytest.approx(scores, rel=1e-4, abs=1e-5)


@st.composite
def generations(draw: st.DrawFn) -> Generation:
    beams = draw(st.sampled_from([1, 1, 2, 3, 4]))
    longest = draw(st.integers(1, 12))
    tokens = st.integers(1, VOCABULARY - 2)
    free = st.integers(1, VOCABULARY - 2).filter(lambda token: token != 3)  # 3 may be forced
    return Generation(
        decoder_start_ids=(PAD,),
        eos_token_ids=draw(st.sampled_from([(END,), (END, 5), (END, 5, 9)])),
        pad_token_id=PAD,
        max_new_tokens=longest,
        num_beams=beams,
        num_return_sequences=draw(st.integers(1, beams)),
        length_penalty=draw(st.sampled_from([1.0, 0.0, 0.6, 2.0, -1.0])),
        early_stopping=draw(st.sampled_from([False, True, "never"])),
        no_repeat_ngram_size=draw(st.sampled_from([0, 0, 1, 2, 3])),
        bad_words_ids=tuple(
            draw(st.lists(st.lists(tokens, min_size=1, max_size=3).map(tuple), max_size=4))
        ),
        suppress_tokens=tuple(draw(st.lists(free, max_size=3))),
        forced_bos_token_id=draw(st.sampled_from([None, None, 3])),
        forced_eos_token_id=draw(st.sampled_from([None, END])),
        min_new_tokens=draw(st.sampled_from([0, 0, longest // 2, longest])),
        repetition_penalty=draw(st.sampled_from([1.0, 1.0, 1.3, 0.8, 4.0])),
        logit_bias=draw(
            st.dictionaries(
                tokens, st.sampled_from([-100.0, -1.5, 0.5, 2.0, 30.0]), max_size=draw(MANY)
            )
        ),
        renormalize_logits=draw(st.booleans()),
    )


MANY = st.sampled_from([0, 0, 3, VOCABULARY])
PROMPTS = st.lists(st.integers(1, 30), min_size=1, max_size=6)


@given(source=PROMPTS, rules=generations())
def test_translations_are_those_of_generate(source: list[int], rules: Generation) -> None:
    wanted = generated(marian(), source, rules)
    assert_alike(translated(source, rules), wanted, rules.num_beams)


@given(prompt=PROMPTS, rules=generations())
def test_continuations_are_those_of_generate(prompt: list[int], rules: Generation) -> None:
    rules = rules.model_copy(update={"decoder_start_ids": ()})
    wanted = generated(gpt2(), prompt, rules)
    assert_alike(continued(prompt, rules), wanted, rules.num_beams)
