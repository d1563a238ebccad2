"""`tag`: labels of tokens with their place in the text, joined to entities where requested."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pydantic import Field

from inference.bundle.manifest import Role
from inference.errors import ServingError
from inference.processing.tokenizer import EncodedText
from inference.tasks.shared.canaries import part_canaries
from inference.tasks.shared.image_inputs import ImageInput
from inference.tasks.shared.labels import (
    OUTSIDE,
    Entity,
    LabelledToken,
    Scores,
    activate,
    entities,
    windows,
    without_overlaps,
)
from inference.tasks.shared.loaded_model import LoadedModel
from inference.tasks.shared.model_calls import Call, InferCall, Outcome, answer_each, attempt_each
from inference.tasks.shared.needs import SPANS, labelled, scores
from inference.tasks.shared.rows import Row
from inference.tasks.shared.served_task import Plan, ServedTask, TaskConfig
from inference.tasks.shared.text_rows import TextRows
from triptych.messages import Usage
from triptych.tasks import tag as declared
from triptych.tasks.tag import TaggedToken, TagRequest, TagResponse, Tags


class TagSection(TaskConfig):
    """The labels."""

    labels: tuple[str, ...] = Field(min_length=1)
    """In the order of the logits."""


@dataclass(frozen=True)
class _Window:
    """Some tokens of a text, special tokens included."""

    positions: Sequence[int]
    """In the whole text's tokens."""
    number: int
    """Among the different inputs of the request."""


@dataclass(frozen=True)
class _Item:
    text: str
    encoded: EncodedText
    continues: Sequence[bool]
    windows: tuple[_Window, ...]


@dataclass(frozen=True)
class TagPlan(Plan):
    """Calls that label the windows of the texts."""

    model: LoadedModel
    section: TagSection
    request: TagRequest
    items: tuple[_Item | ServingError, ...]
    rows: Sequence[Row]
    calls: tuple[InferCall, ...]
    prompt_tokens: int

    def finish(self, outcomes: Sequence[Outcome]) -> TagResponse:
        def label(index: int, found: _Item) -> Tags:
            tokens = [
                TaggedToken(
                    text=found.text[entity.start : entity.end],
                    start=entity.start,
                    end=entity.end,
                    label=entity.label,
                    score=entity.score,
                )
                for entity in self._entities(found, outcomes)
            ]
            cut = found.encoded.cut_characters or None
            return Tags(index=index, tokens=tokens, truncated_characters=cut)

        data = answer_each(self.items, label, Tags)
        return TagResponse(
            model=self.model.name, data=data, usage=Usage(prompt_tokens=self.prompt_tokens)
        )

    def _entities(self, item: _Item, outcomes: Sequence[Outcome]) -> list[Entity]:
        found: list[Entity] = []
        for window in item.windows:
            row = self.rows[window.number]
            logits = row.read(outcomes, Role.LOGITS, len(window.positions))
            tokens = _tokens(item, window, activate(logits, "softmax"))
            found += entities(tokens, self.section.labels, self.request.aggregation)
        if not self.request.return_outside:
            found = [entity for entity in found if entity.label != OUTSIDE]
        return without_overlaps(found) if len(item.windows) > 1 else found


class Tag(ServedTask[TagRequest, TagSection]):
    """Token classifiers."""

    declaration = declared.TASK
    section = TagSection
    needs = (scores(takes=Role.TOKENS, shape="(B, T, C)") & SPANS, labelled(declared.TASK.name))

    def prepare(
        self, request: TagRequest, images: Sequence[ImageInput], model: LoadedModel
    ) -> TagPlan:
        model.task_limits.check_batch(len(request.texts), "texts")
        rows = TextRows(model)

        def add(index: int, text: str) -> _Item:
            encoded = model.encode_text(
                text,
                f"texts.{index}",
                with_offsets=True,
                is_whole=request.stride is None,
                cut_end=request.cut_end,
            )
            continues = model.spans.continues(text, encoded)
            limit = model.text_limit
            cut = windows(encoded, limit, request.stride or 0, "stride")
            numbered = (_Window(one, rows.add(encoded.at(one))) for one in cut)
            return _Item(text, encoded, continues, tuple(numbered))

        items = attempt_each(request.texts, add)
        calls: list[InferCall] = []
        part = model.part(takes=Role.TOKENS, returns=Role.LOGITS)
        found = rows.batch(part, (Role.LOGITS,), calls)
        tokens = sum(map(len, rows.texts))
        return TagPlan(model, self.section_of(model), request, items, found, tuple(calls), tokens)

    def canary(self, model: LoadedModel) -> Iterable[Call]:
        return part_canaries(model, (Role.TOKENS, Role.LOGITS))

    def size(self, request: TagRequest) -> int:
        return sum(map(len, request.texts))


def _tokens(item: _Item, window: _Window, scores: Scores) -> list[LabelledToken]:
    """The window's tokens without special ones.

    Args:
        scores: (T, labels), T of the window.
    """
    return [
        LabelledToken(*item.encoded.offsets[i], row, item.continues[i])
        for i, row in zip(window.positions, scores, strict=True)
        if item.encoded.sequences[i] is not None
    ]


TASK = Tag()
