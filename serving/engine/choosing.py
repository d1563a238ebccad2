"""Which tokens a row may take next: forced and banned tokens, as `transformers` defines them.

The chooser graph answers with each row's best tokens; what is not allowed is dropped here. A row
with n banned tokens asks for n more candidates, so that enough are left: exact, and no
vocabulary-wide tensor is edited.

Order of the processors (`transformers` 5, `GenerationMixin._get_logits_processor`): n-grams, bad
words, forced first token, forced last token, suppressed tokens. One difference: a forced token that
is suppressed as well stays forced (there, every score becomes minus infinity and token 0 wins).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from serving.generation import FinishReason, Generation


@dataclass(frozen=True)
class Constraint:
    """What one row's next token must or must not be. A forced token has log-probability 0."""

    forced: int | None = None
    banned: frozenset[int] = frozenset()


class Policy:
    """One request's rules, prepared to be asked once a row and step."""

    def __init__(self, rules: Generation) -> None:
        self._rules = rules
        self._always = Constraint(banned=rules.always_banned)
        self._long_words = [word for word in rules.bad_words_ids if len(word) > 1]

    def constraint(self, prompt: Sequence[int], generated: Sequence[int]) -> Constraint:
        """The constraint on the token after `prompt + generated`."""
        forced = self._forced(len(prompt), len(generated))
        if forced is not None:
            return Constraint(forced=forced)
        if not self._long_words and not self._rules.no_repeat_ngram_size:
            return self._always
        history = (*prompt, *generated)
        repeats = repeated_ngram_ends(history, self._rules.no_repeat_ngram_size)
        words = {word[-1] for word in self._long_words if _ends_with(history, word[:-1])}
        return Constraint(banned=self._always.banned | repeats | words)

    def finish_reason(self, token_id: int, length: int, constraint: Constraint) -> str | None:
        """Why a sequence ends with this token as its `length`-th generated one, if it does.

        An end token that the cap forced counts as `length`: the model had not chosen it.
        """
        at_cap = length >= self._rules.max_new_tokens
        if token_id in self._rules.eos_token_ids and not (at_cap and constraint.forced is not None):
            return FinishReason.STOP
        return FinishReason.LENGTH if at_cap else None

    def _forced(self, prompt_length: int, generated: int) -> int | None:
        rules = self._rules
        if rules.forced_eos_token_id is not None and generated == rules.max_new_tokens - 1:
            return rules.forced_eos_token_id
        if prompt_length + generated == 1:
            return rules.forced_bos_token_id
        return None


def repeated_ngram_ends(history: Sequence[int], size: int) -> set[int]:
    """Tokens that would complete an n-gram of that size a second time; size 0 bans nothing."""
    if not size or len(history) < size:
        return set()
    prefix = tuple(history[len(history) + 1 - size :])
    starts = range(len(history) - size + 1)
    return {
        history[start + size - 1]
        for start in starts
        if tuple(history[start : start + size - 1]) == prefix
    }


def allowed(
    constraint: Constraint, token_ids: NDArray[np.int64], log_probs: NDArray[np.float32]
) -> tuple[list[int], NDArray[np.float32]]:
    """One row's candidates under its constraint, best first.

    Args:
        token_ids: (k,) best first.
        log_probs: (k,) float32.
    """
    if constraint.forced is not None:
        return [constraint.forced], np.zeros(1, np.float32)
    ids: list[int] = token_ids.tolist()
    if constraint.banned.isdisjoint(ids):
        return ids, log_probs
    kept = [index for index, token in enumerate(ids) if token not in constraint.banned]
    return [ids[index] for index in kept], log_probs[kept]


def normalised(score: np.float32, length: int, length_penalty: float) -> np.float32:
    """`score / length ** length_penalty` in float32, as `transformers` computes it."""
    return np.float32(score / np.float32(length**length_penalty))


def _ends_with(history: Sequence[int], suffix: Sequence[int]) -> bool:
    return tuple(history[-len(suffix) :]) == tuple(suffix)
