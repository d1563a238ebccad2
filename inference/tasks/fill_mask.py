"""`fill-mask`: the most likely tokens at the masked positions, chosen inside the graph."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from inference.bundle.manifest import Part, Role
from inference.errors import InvalidRequest, ServingError
from inference.processing.tokenizer import EncodedText
from inference.tasks.shared.canaries import part_canaries
from inference.tasks.shared.image_inputs import ImageInput
from inference.tasks.shared.labels import best_first
from inference.tasks.shared.length_buckets import Bucket
from inference.tasks.shared.loaded_model import CHARACTERS_PER_TOKEN, LoadedModel, naming
from inference.tasks.shared.model_calls import (
    Array,
    Call,
    InferCall,
    Outcome,
    answer_each,
    attempt_each,
    map_valid,
)
from inference.tasks.shared.needs import SPANS, part
from inference.tasks.shared.rows import Row
from inference.tasks.shared.served_task import Plan, ServedTask, TaskConfig
from inference.tasks.shared.text_rows import TextRows
from triptych.messages import Usage
from triptych.tasks import fill_mask as declared
from triptych.tasks.fill_mask import (
    MAX_TARGETS,
    MAX_TOP_K,
    FilledMasks,
    FillMaskRequest,
    FillMaskResponse,
    MaskToken,
)

MAX_CANDIDATES = 2000
"""Of one request: masks times tokens for each, because each is returned with the whole text."""


class FillMaskSection(TaskConfig):
    """The token that stands for a missing one."""

    mask_token: str
    mask_token_id: int


@dataclass(frozen=True)
class _Item:
    row: Row
    text: EncodedText
    masks: tuple[int, ...]
    """Positions in the text's tokens."""


@dataclass(frozen=True)
class FillMaskPlan(Plan):
    """Calls that score tokens at the masks."""

    model: LoadedModel
    targets: tuple[int, ...]
    """Tokens to score; none: the most likely ones of the vocabulary."""
    top_k: int
    items: tuple[_Item | ServingError, ...]
    calls: tuple[InferCall, ...]
    prompt_tokens: int

    def finish(self, outcomes: Sequence[Outcome]) -> FillMaskResponse:
        def fill(index: int, item: _Item) -> FilledMasks:
            cut = item.text.cut_characters or None
            masks = self._masks(item, outcomes)
            return FilledMasks(index=index, masks=masks, truncated_characters=cut)

        data = answer_each(self.items, fill, FilledMasks)
        return FillMaskResponse(
            model=self.model.name, data=data, usage=Usage(prompt_tokens=self.prompt_tokens)
        )

    def finish_size(self, outcomes: Sequence[Outcome]) -> int:
        """Tokens of all texts to render: each candidate's is the whole one."""
        return sum(
            len(item.masks) * min(self.top_k, len(self.targets) or self.top_k) * len(item.text)
            for item in self.items
            if isinstance(item, _Item)
        )

    def _masks(self, item: _Item, outcomes: Sequence[Outcome]) -> list[list[MaskToken]]:
        if self.targets:
            scores = item.row.read(outcomes, Role.CHOICE_SCORES)
            tokens = np.broadcast_to(np.array(self.targets), scores.shape)
        else:
            scores = item.row.read(outcomes, Role.TOP_SCORES)
            tokens = item.row.read(outcomes, Role.TOP_TOKENS)
        return [
            [
                self._token(item, place, int(tokens[place, i]), float(scores[place, i]))
                for i in best_first(scores[place], self.top_k)
            ]
            for place in range(len(item.masks))
        ]

    def _token(self, item: _Item, place: int, token_id: int, score: float) -> MaskToken:
        """One token at a mask, with a text that lacks padding tokens as the pipeline's does.

        Among several masks the others stay in the text.
        """
        ids = list(item.text.ids)
        ids[item.masks[place]] = token_id
        pad = self.model.pad_token_id
        tokens = zip(ids, item.text.sequences, strict=True)
        own = [token for token, sequence in tokens if sequence == 0 and token != pad]
        render = self.model.spans.render
        return MaskToken(
            token=render([token_id], skip_special_tokens=False),
            token_id=token_id,
            score=score,
            text=render(own, skip_special_tokens=len(item.masks) == 1),
        )


class FillMask(ServedTask[FillMaskRequest, FillMaskSection]):
    """Masked language models; vocabulary-wide scores never leave the graph."""

    declaration = declared.TASK
    section = FillMaskSection
    needs = (part(takes=Role.POSITIONS, returns=Role.TOP_SCORES) & SPANS,)

    def prepare(
        self, request: FillMaskRequest, images: Sequence[ImageInput], model: LoadedModel
    ) -> FillMaskPlan:
        model.task_limits.check_batch(len(request.texts), "texts")
        targets = _targets(request.targets or (), model)
        top_k = _top_k(request, model)
        rows = TextRows(model)
        mask = self.section_of(model)

        def add(index: int, text: str) -> tuple[int, EncodedText, tuple[int, ...]]:
            field = f"texts.{index}"
            encoded = model.encode_text(text, field, cut_end=request.cut_end)
            masks = tuple(i for i, token in enumerate(encoded.ids) if token == mask.mask_token_id)
            if not masks:
                where = " in what was left of it" if encoded.cut_characters else ""
                raise InvalidRequest(
                    f"{field} has no mask{where}: {model.name} fills {mask.mask_token}", field=field
                )
            return rows.add(encoded), encoded, masks

        texts = attempt_each(request.texts, add)
        found = [text for text in texts if not isinstance(text, ServingError)]
        _check_size(sum(len(masks) for _, _, masks in found), len(targets) or top_k)
        calls: list[InferCall] = []
        inputs = _Masks({number: masks for number, _, masks in found}, targets)
        outputs = (Role.CHOICE_SCORES,) if targets else (Role.TOP_TOKENS, Role.TOP_SCORES)
        places = rows.batch(_part(model), outputs, calls, inputs.of)
        return FillMaskPlan(
            model,
            targets,
            top_k,
            map_valid(texts, lambda text: _Item(places[text[0]], *text[1:])),
            tuple(calls),
            prompt_tokens=sum(map(len, rows.texts)),
        )

    def canary(self, model: LoadedModel) -> Iterable[Call]:
        return part_canaries(model, (Role.TOKENS, Role.TOP_SCORES))

    def details(self, model: LoadedModel) -> Mapping[str, str]:
        return {"mask_token": self.section_of(model).mask_token}

    def limits(self, model: LoadedModel) -> Mapping[str, int]:
        return {
            "max_top_k": _graph_top_k(model),
            "max_targets": MAX_TARGETS,
            "max_candidates": MAX_CANDIDATES,
        }

    def size(self, request: FillMaskRequest) -> int:
        return sum(map(len, (*request.texts, *(request.targets or ()))))


@dataclass(frozen=True)
class _Masks:
    """Inputs beside the text: which positions, and which tokens to score there."""

    masks: Mapping[int, tuple[int, ...]]
    """Number of a text → positions of its masks."""
    targets: tuple[int, ...]

    def of(self, bucket: Bucket) -> Mapping[Role, Array]:
        """POSITIONS (B, M), a row's first one as padding, and CHOICES (B, N).

        M is a power of two, at most T, so that texts with different numbers of masks can be joined.
        """
        masks = [self.masks[number] for number in bucket.rows]
        most = min(_power_of_two(max(map(len, masks))), bucket.token_ids.shape[1])
        padded = [[*own, *own[:1] * (most - len(own))] for own in masks]
        choices = [self.targets or (0,)] * len(masks)
        return {
            Role.POSITIONS: np.array(padded, dtype=np.int64),
            Role.CHOICES: np.array(choices, dtype=np.int64),
        }


def _power_of_two(number: int) -> int:
    """The smallest one that is not less."""
    return 1 << (number - 1).bit_length()


def _part(model: LoadedModel) -> Part:
    return model.part(takes=Role.POSITIONS, returns=Role.TOP_SCORES)


def _graph_top_k(model: LoadedModel) -> int:
    """Tokens that the graph returns for a mask: the last dimension of TOP_SCORES."""
    output = _part(model).graph.output(Role.TOP_SCORES)
    size = output.shape[-1] if output else None
    return min(MAX_TOP_K, size) if isinstance(size, int) else MAX_TOP_K


def _top_k(request: FillMaskRequest, model: LoadedModel) -> int:
    limit = _graph_top_k(model)
    if request.targets is None and request.top_k > limit:
        raise InvalidRequest(
            f"top_k is {request.top_k}, {model.name} returns at most {limit}", field="top_k"
        )
    return request.top_k


def _targets(targets: Sequence[str], model: LoadedModel) -> tuple[int, ...]:
    """Token ids of the targets, each once.

    Raises:
        InvalidRequest: one of them is not one token.
    """
    found: dict[int, None] = {}
    for index, target in enumerate(targets):
        field = f"targets.{index}"
        is_short = len(target) <= CHARACTERS_PER_TOKEN
        with naming(field):
            token = model.spans.token_id(target) if is_short else None
        if token is None:
            raise InvalidRequest(
                f"{field} is not one token of {model.name}: give another word", field=field
            )
        found[token] = None
    return tuple(found)


def _check_size(masks: int, candidates: int) -> None:
    """Raises InvalidRequest where the response would be too large."""
    if masks * candidates > MAX_CANDIDATES:
        raise InvalidRequest(
            f"the texts have {masks} masks with {candidates} tokens each, at most {MAX_CANDIDATES} "
            "together: lower top_k, or send several requests",
            field="texts",
        )


TASK = FillMask()
