"""Constraints on a row's next token and edits of its scores, with the semantics of `transformers`.

Order of the processors (`transformers` 5, `GenerationMixin._get_logits_processor`): bias,
repetition penalty, n-grams, bad words, early end tokens, forced first token, forced
last token, suppressed tokens. Presence and frequency penalties, which it does not have, follow the
repetition penalty. One difference: a forced token that is suppressed as well stays forced (there,
every score becomes minus infinity and token 0 wins).

Banned tokens are dropped from the candidates: a row with n bans requests n more. Where the others
must share the whole probability (sampling, `renormalize_logits`), and with penalties, bans become
a sparse `Edit` of the row's scores instead, which the runner applies.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inference.engine.request import EngineRequest, Grammar, GrammarState
from inference.engine.runners.candidates import (
    CandidateRequest,
    Candidates,
    Edit,
    GreedyRule,
    plain_request,
)
from inference.errors import InvalidRequest
from inference.generation import FinishReason, Generation, Hypothesis

_FIRST_CAPACITY = 64


class TokenHistory:
    """A prompt and the tokens generated after it.

    A token costs the same however many there are; an edit copies one cell for each distinct token.

    Args:
        prompt: The decoder's tokens before the first generated one.
        unscored: One of them that has no score, which nothing edits.

    Attributes:
        token_ids: The prompt, then the generated tokens.
    """

    def __init__(
        self, rules: Generation, prompt: Sequence[int], unscored: int | None = None
    ) -> None:
        self.token_ids: list[int] = []
        self._unscored = unscored
        self._rules = rules
        self._ngram_size = rules.no_repeat_ngram_size
        self._has_counts = rules.presence_penalty != 0 or rules.frequency_penalty != 0
        self._penalises = rules.repetition_penalty != 1
        self._followers: dict[tuple[int, ...], frozenset[int]] = {}
        """n - 1 tokens → the tokens that came after them."""
        self._counts: dict[int, int] = {}
        self._cells: dict[int, int] = {}
        """Edited token → its place in the arrays."""
        self._ids = np.empty(_FIRST_CAPACITY, np.int64)
        self._bias, self._factor, self._offset = (
            np.empty(_FIRST_CAPACITY, np.float32) for _ in range(3)
        )
        for token in rules.logit_bias:
            self._cell(token)
        for token in prompt:
            self._append(token)
        self._prompt_length = len(prompt)

    @property
    def prompt_length(self) -> int:
        """Tokens of the prompt."""
        return self._prompt_length

    @property
    def generated(self) -> int:
        """Tokens after the prompt."""
        return len(self.token_ids) - self._prompt_length

    def accept(self, token: int) -> None:
        """Adds a generated token."""
        self._append(token)
        if self._has_counts:
            place, rules = self._cell(token), self._rules
            count = self._counts[token] = self._counts.get(token, 0) + 1
            self._offset[place] = -(rules.presence_penalty + rules.frequency_penalty * count)

    def copy(self) -> TokenHistory:
        """A history that grows by itself."""
        made = copy.copy(self)
        for name, value in vars(self).items():
            if isinstance(value, list | dict | np.ndarray):
                setattr(made, name, value.copy())
        return made

    def ends_with(self, tokens: Sequence[int]) -> bool:
        """Whether these are the last tokens; there is at least one."""
        return tuple(self.token_ids[-len(tokens) :]) == tuple(tokens)

    def repeated_ngram_ends(self) -> frozenset[int]:
        """Tokens that would complete an n-gram of `no_repeat_ngram_size` a second time."""
        if not self._ngram_size or len(self.token_ids) < self._ngram_size:
            return frozenset()
        last = tuple(self.token_ids[len(self.token_ids) + 1 - self._ngram_size :])
        return self._followers.get(last, frozenset())

    def edit(self, banned: Collection[int] = ()) -> Edit:
        """Bias, repetition, presence and frequency penalties, then bans, as one edit.

        Of beams they change log-probabilities (`GenerationMixin._beam_search`), else logits.
        """
        count = len(self._cells)
        ids = self._ids[:count].copy()
        bias, factor, offset = (
            array[:count].copy() for array in (self._bias, self._factor, self._offset)
        )
        if banned:
            offset[[self._cells[token] for token in banned if token in self._cells]] = -np.inf
            more = sorted(token for token in banned if token not in self._cells)
            zeros = np.zeros(len(more), np.float32)
            ids = np.concatenate([ids, np.array(more, np.int64)])
            bias, factor = np.concatenate([bias, zeros]), np.concatenate([factor, zeros + 1])
            offset = np.concatenate([offset, zeros - np.float32(np.inf)])
        return Edit(
            ids,
            bias,
            factor,
            offset,
            is_of_log_probs=self._rules.num_beams > 1,
            renormalises=self._rules.renormalize_logits,
        )

    def _append(self, token: int) -> None:
        self.token_ids.append(token)
        if token == self._unscored:
            return
        if self._penalises:
            place = self._cell(token)
            self._factor[place] = self._rules.repetition_penalty
        size = self._ngram_size
        if size and len(self.token_ids) >= size:
            before = tuple(self.token_ids[-size:-1])
            self._followers[before] = self._followers.get(before, frozenset()) | {token}

    def _cell(self, token: int) -> int:
        """The place of an edited token, which may get one in new arrays."""
        place = self._cells.get(token)
        if place is None:
            place = self._cells[token] = len(self._cells)
            if place == len(self._ids):
                self._ids = _double(self._ids)
                self._bias, self._factor, self._offset = (
                    _double(each) for each in (self._bias, self._factor, self._offset)
                )
            self._ids[place], self._bias[place] = token, self._rules.logit_bias.get(token, 0.0)
            self._factor[place], self._offset[place] = 1, 0
        return place


def _double(array: NDArray[Any]) -> NDArray[Any]:
    return np.concatenate([array, np.empty_like(array)])


Top = tuple[tuple[int, float], ...]


@dataclass(frozen=True, eq=False)
class TokenRecord:
    """What is recorded of one generated token.

    Attributes:
        log_prob: Of the token.
        top: The best tokens of its position, and their log-probabilities.
        emitted: (S,) its EMIT output, if alignments are requested and `step` has one.
    """

    log_prob: float
    top: Top
    emitted: NDArray[np.float32] | None


class TokenTrace:
    """Makes records for a request, and hypotheses of records.

    Attributes:
        is_enabled: Whether the request needs records.
    """

    def __init__(self, request: EngineRequest) -> None:
        rules = request.rules
        self._top = rules.top_log_probs
        self._aligns = rules.return_alignment
        self._source = None if request.source_ids is None else len(request.source_ids)
        self.is_enabled = self._top is not None or self._aligns

    @property
    def count(self) -> int:
        """Candidates that a position's best tokens need."""
        return self._top or 0

    def record(
        self,
        ids: Sequence[int],
        log_probs: NDArray[np.float32],
        candidates: Candidates,
        row: int,
        rank: int = 0,
    ) -> TokenRecord:
        """The record of one token; requires `is_enabled`.

        Args:
            ids: The row's allowed candidates, best first; `log_probs` are theirs.
            rank: Index of the token among them.
        """
        best = zip(ids[: self.count], log_probs[: self.count].tolist(), strict=True)
        emitted = None
        if self._aligns and candidates.emitted is not None:
            emitted = candidates.emitted(row)[: self._source].copy()
        return TokenRecord(float(log_probs[rank]), tuple(best), emitted)

    def hypothesis(
        self,
        token_ids: Sequence[int],
        score: float,
        finish_reason: str,
        records: Sequence[TokenRecord],
    ) -> Hypothesis:
        """A finished hypothesis; `records` are those of its tokens, or empty."""
        emitted = [record.emitted for record in records if record.emitted is not None]
        listed = records if self._top is not None else ()
        return Hypothesis(
            tuple(token_ids),
            score,
            finish_reason,
            log_probs=tuple(record.log_prob for record in listed),
            top=tuple(record.top for record in listed),
            alignment=np.stack(emitted) if emitted else None,
        )


@dataclass(frozen=True, eq=False)
class Constraint:
    """Constraint on one row's next token. A forced token has log-probability 0.

    Attributes:
        banned: Tokens to drop from the candidates, apart from those that `edit` bans.
    """

    forced: int | None = None
    banned: frozenset[int] = frozenset()
    edit: Edit | None = None
    _requests: dict[tuple[int, float | None], CandidateRequest] = field(default_factory=dict)

    @property
    def drops(self) -> bool:
        """Whether candidates must be dropped."""
        return self.forced is not None or bool(self.banned)

    @property
    def restricts(self) -> bool:
        """Whether it may leave no token."""
        return self.edit is not None or bool(self.banned)

    @cached_property
    def greedy_rule(self) -> GreedyRule | None:
        """The same for several greedy steps in one call; None where these cannot follow it."""
        if self.forced is not None:
            return None
        if self.edit is not None and not self.edit.only_adds:
            return None
        return GreedyRule(self.edit, self.banned)

    def row_request(self, count: int, temperature: float | None = None) -> CandidateRequest:
        """The request to the runner that leaves `count` candidates after drops.

        One object for all rows under this constraint.
        """
        if self.forced is not None:
            return plain_request(1)
        count += len(self.banned)
        if self.edit is None and temperature is None:
            return plain_request(count)
        key = count, temperature
        if key not in self._requests:
            self._requests[key] = CandidateRequest(count, self.edit, temperature)
        return self._requests[key]


_FREE = Constraint()


class LogitsProcessors:
    """One request's rules, prepared to be applied once per row and step.

    Args:
        grammar: What the output matches. A row with one has processors of its own, whose
            `finish_reason` is called once for each token in turn.

    Attributes:
        follows_history: The constraint depends on which tokens were generated.
    """

    def __init__(self, rules: Generation, grammar: Grammar | None = None) -> None:
        self._rules = rules
        self._grammar = None if grammar is None else grammar.start()
        self._plain: tuple[NDArray[np.int64], Constraint] | None = None
        """The last tokens that the grammar banned, and their constraint."""
        self._long_words = [word for word in rules.bad_words_ids if len(word) > 1]
        self._counts = rules.presence_penalty != 0 or rules.frequency_penalty != 0
        self.follows_history = bool(
            self._long_words
            or rules.no_repeat_ngram_size
            or rules.repetition_penalty != 1
            or self._counts
            or self._grammar is not None
        )
        self._always_banned = rules.always_banned
        self._early_bans = self._always_banned | frozenset(rules.eos_token_ids)
        nothing = self.start(())
        self._early = self._constraint(self._early_bans, nothing)
        self._always = self._constraint(self._always_banned, nothing)

    def start(self, prompt: Sequence[int], unscored: int | None = None) -> TokenHistory:
        """The history of a row before its first generated token; see `TokenHistory`."""
        return TokenHistory(self._rules, prompt, unscored)

    def common(self, prompt_length: int, generated: int) -> Constraint | None:
        """The constraint after `generated` tokens; None where it depends on which they are."""
        forced = self._forced_token(prompt_length, generated)
        if forced is not None:
            return require_token(forced)
        if self.follows_history:
            return None
        return self._early if generated < self._rules.min_new_tokens else self._always

    def alike_after(self, generated: int) -> int:
        """Steps after `generated` tokens whose constraints are alike, whatever their tokens are."""
        if self.follows_history:
            return 0
        rules = self._rules
        end = rules.max_new_tokens - (rules.forced_eos_token_id is not None)
        if generated < rules.min_new_tokens:
            end = min(end, rules.min_new_tokens)
        return max(0, end - generated)

    def constraint(self, history: TokenHistory) -> Constraint:
        """The constraint on the token after a history; equal ones share an object."""
        common = self.common(history.prompt_length, history.generated)
        if common is not None:
            return common
        is_early = history.generated < self._rules.min_new_tokens
        banned = self._early_bans if is_early else self._always_banned
        words = {word[-1] for word in self._long_words if history.ends_with(word[:-1])}
        banned |= history.repeated_ngram_ends() | words
        if self._grammar is not None:
            return self._within(self._grammar.find_banned(), history.edit(banned))
        return self._constraint(banned, history)

    def replay(self, history: TokenHistory, token_ids: Sequence[int]) -> str | None:
        """Takes the first tokens of a row, which were generated before.

        Returns:
            Why the last of them ended the sequence, if it did.

        Raises:
            InvalidRequest: they do not match the grammar.
        """
        reason = None
        for token_id in token_ids:
            common = self.common(history.prompt_length, history.generated)
            history.accept(token_id)
            reason = self.finish_reason(token_id, history.generated, common or _FREE)
        return reason

    def finish_reason(self, token_id: int, length: int, constraint: Constraint) -> str | None:
        """Why a sequence ends with this token as its `length`-th generated one, if it does.

        An end token forced by the token limit counts as `length`: the model did not choose it.
        """
        at_cap = length >= self._rules.max_new_tokens
        if self._grammar is not None:
            return self._match_reason(self._grammar, token_id, constraint, at_cap=at_cap)
        if token_id in self._rules.eos_token_ids and not (at_cap and constraint.forced is not None):
            return FinishReason.STOP
        return FinishReason.LENGTH if at_cap else None

    def _match_reason(
        self, grammar: GrammarState, token_id: int, constraint: Constraint, *, at_cap: bool
    ) -> str | None:
        """As `finish_reason`; `stop` means that the output matches."""
        is_end = token_id in self._rules.eos_token_ids
        if not is_end and constraint.forced is None:
            grammar.take(token_id)
        if is_end or at_cap:
            return FinishReason.STOP if grammar.accepts else FinishReason.LENGTH
        return FinishReason.STOP if grammar.is_complete else None

    def _forced_token(self, prompt_length: int, generated: int) -> int | None:
        rules = self._rules
        if rules.forced_eos_token_id is not None and generated == rules.max_new_tokens - 1:
            return rules.forced_eos_token_id
        if prompt_length + generated == 1:
            return rules.forced_bos_token_id
        return None

    def _constraint(self, banned: frozenset[int], history: TokenHistory) -> Constraint:
        rules = self._rules
        shares_all = rules.do_sample or rules.renormalize_logits
        changes = (
            rules.logit_bias
            or rules.repetition_penalty != 1
            or (self._counts and history.generated)
        )
        if not changes:
            return ban_tokens(banned, by_edit=bool(shares_all and banned))
        is_beam = rules.num_beams > 1
        bans_by_edit = shares_all or is_beam
        edit = history.edit(banned if bans_by_edit else frozenset())
        return Constraint(banned=frozenset() if bans_by_edit else banned, edit=edit)

    def _within(self, outside: NDArray[np.int64], edit: Edit) -> Constraint:
        """The constraint to tokens of a grammar, after the other rules.

        Args:
            outside: Tokens that the grammar bans.
            edit: Of the other rules.
        """
        if not len(edit.token_ids):
            if self._plain is None or self._plain[0] is not outside:
                self._plain = outside, _without(outside)
            return self._plain[1]
        inside = ~np.isin(edit.token_ids, outside)
        zeros = np.zeros(len(outside), np.float32)
        return Constraint(
            edit=Edit(
                np.concatenate([edit.token_ids[inside], outside]),
                bias=np.concatenate([edit.bias[inside], zeros]),
                factor=np.concatenate([edit.factor[inside], zeros + 1]),
                offset=np.concatenate([edit.offset[inside], zeros - np.float32(np.inf)]),
            )
        )


@lru_cache(maxsize=256)
def require_token(token_id: int) -> Constraint:
    """The constraint to one token; one object for all rows."""
    return Constraint(forced=token_id)


@lru_cache(maxsize=256)
def ban_tokens(token_ids: frozenset[int], *, by_edit: bool) -> Constraint:
    """The constraint to any other tokens; one object for all rows."""
    return Constraint(edit=ban(token_ids)) if by_edit else Constraint(banned=token_ids)


def _without(token_ids: NDArray[np.int64]) -> Constraint:
    """The constraint to any other tokens."""
    zeros = np.zeros(len(token_ids), np.float32)
    return Constraint(
        edit=Edit(token_ids, bias=zeros, factor=zeros + 1, offset=zeros - np.float32(np.inf))
    )


def ban(token_ids: frozenset[int]) -> Edit:
    """The edit that bans some tokens."""
    ids = np.array(sorted(token_ids), np.int64)
    zeros = np.zeros(len(ids), np.float32)
    return Edit(ids, bias=zeros, factor=zeros + 1, offset=zeros - np.float32(np.inf))


def keep_allowed(
    constraint: Constraint, ids: list[int], log_probs: NDArray[np.float32]
) -> tuple[list[int], NDArray[np.float32]]:
    """One row's candidates under its constraint, best first.

    Args:
        ids: k tokens, best first.
        log_probs: (k,) float32.
    """
    if constraint.forced is not None:
        return [constraint.forced], np.zeros(1, np.float32)
    is_finite = constraint.edit is None or log_probs[-1] > -np.inf
    if is_finite and constraint.banned.isdisjoint(ids):
        return ids, log_probs
    kept = [
        index
        for index, (token, log_prob) in enumerate(zip(ids, log_probs.tolist(), strict=True))
        if token not in constraint.banned and log_prob > -np.inf
    ]
    if len(kept) == len(ids):
        return ids, log_probs
    return [ids[index] for index in kept], log_probs[kept]


def apply_length_penalty(
    score: float | np.float32, length: int, length_penalty: float
) -> np.float32:
    """`score / length ** length_penalty` in float32, as `transformers` computes it."""
    return np.float32(np.float32(score) / np.float32(length**length_penalty))


def no_token_left() -> InvalidRequest:
    """The error of a request whose rules allow no token."""
    return InvalidRequest("the generation rules ban every token: allow at least one")
