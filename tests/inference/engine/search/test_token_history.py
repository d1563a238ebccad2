"""A history that grows token by token says what one that is read as a whole says."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from inference.engine.runners.candidates import Edit
from inference.engine.search.token_history import TokenHistory
from inference.generation import Generation

tokens = st.integers(0, 30)
histories = st.one_of(
    st.lists(tokens, max_size=150),
    st.integers(0, 200).map(lambda count: list(range(count))),  # more than the first capacity
)
penalising = st.fixed_dictionaries(
    {},
    optional={
        "repetition_penalty": st.sampled_from([0.8, 1.0, 1.3]),
        "presence_penalty": st.sampled_from([-1.0, 0.0, 0.5]),
        "frequency_penalty": st.sampled_from([0.0, 0.25]),
        "logit_bias": st.dictionaries(tokens, st.sampled_from([-2.0, 3.0]), max_size=4),
        "no_repeat_ngram_size": st.integers(0, 4),
    },
)


def rules(**overrides: Any) -> Generation:
    return Generation(eos_token_ids=(1,), pad_token_id=0, max_new_tokens=200, **overrides)


def cells(edit: Edit) -> dict[int, tuple[float, float, float]]:
    """Token → (bias, factor, offset)."""
    values = (edit.bias, edit.factor, edit.offset)
    columns = zip(*(each.tolist() for each in values), strict=True)
    found = dict(zip(edit.token_ids.tolist(), columns, strict=True))
    assert len(found) == len(edit.token_ids), "tokens are distinct"
    return found


def wanted_cells(
    of: Generation, prompt: list[int], generated: list[int], banned: set[int]
) -> dict[int, tuple[float, float, float]]:
    """The definition: every token of the whole history is looked at."""
    penalised = {*prompt, *generated} if of.repetition_penalty != 1 else set()
    has_counts = of.presence_penalty != 0 or of.frequency_penalty != 0
    counts = Counter(generated if has_counts else ())
    found = {}
    for token in {*of.logit_bias, *penalised, *counts, *banned}:
        offset = -(of.presence_penalty * (token in counts) + of.frequency_penalty * counts[token])
        found[token] = tuple(
            float(np.float32(value))
            for value in (
                of.logit_bias.get(token, 0),
                of.repetition_penalty if token in penalised else 1,
                -np.inf if token in banned else offset,
            )
        )
    return found


def wanted_ends(size: int, history: list[int]) -> set[int]:
    if not size:
        return set()
    ngrams = [tuple(history[start : start + size]) for start in range(len(history) + 1 - size)]
    last = tuple(history[len(history) + 1 - size :])
    return {ngram[-1] for ngram in ngrams if ngram[:-1] == last}


@given(overrides=penalising, prompt=histories, generated=histories, banned=st.sets(tokens))
def test_growing_equals_the_definition(
    overrides: dict[str, Any], prompt: list[int], generated: list[int], banned: set[int]
) -> None:
    of = rules(**overrides)
    history = TokenHistory(of, prompt)
    for token in generated:
        history.accept(token)
    assert cells(history.edit(banned)) == wanted_cells(of, prompt, generated, banned)
    assert cells(history.edit()) == wanted_cells(of, prompt, generated, set())
    ends = wanted_ends(of.no_repeat_ngram_size, prompt + generated)
    assert history.repeated_ngram_ends() == ends
    assert history.token_ids == prompt + generated
    assert (history.prompt_length, history.generated) == (len(prompt), len(generated))


@given(overrides=penalising, shared=histories, left=histories, right=histories)
def test_copies_grow_by_themselves_and_edits_do_not_change(
    overrides: dict[str, Any], shared: list[int], left: list[int], right: list[int]
) -> None:
    of = rules(**overrides)
    first = TokenHistory(of, shared)
    before, expected = first.edit(), cells(first.edit())
    second = first.copy()
    for history, grown in ((first, left), (second, right)):
        for token in grown:
            history.accept(token)
    for history, grown in ((first, left), (second, right)):
        assert cells(history.edit()) == wanted_cells(of, shared, grown, set())
        assert history.repeated_ngram_ends() == wanted_ends(of.no_repeat_ngram_size, shared + grown)
    assert cells(before) == expected


def test_last_tokens_are_compared_whole() -> None:
    history = TokenHistory(rules(), [4, 5])
    history.accept(6)
    assert history.ends_with((5, 6))
    assert not history.ends_with((6, 5))
    assert not history.ends_with((3, 4, 5, 6))
