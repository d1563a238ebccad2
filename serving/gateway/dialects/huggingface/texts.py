"""Routes for texts: `translation`, `fill_mask`, `token_classification`, vectors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
from fastapi import Request
from pydantic import Discriminator, Field, SerializerFunctionWrapHandler, Tag, model_serializer

from inference.errors import InvalidRequest
from inference.tasks import fill_mask, tag, translate
from inference.tasks.embed import TASK
from serving.gateway.dialects.all_or_nothing import MAX_DIMENSIONS, Closed, Open, shortened
from serving.gateway.dialects.huggingface.route import (
    FinishReason,
    PipelineTruncating,
    TaskRoute,
    Truncating,
    Unserved,
    label_of,
    model_of,
)
from serving.gateway.requests.service import Service, TaskRequest
from triptych.messages import OneOrMany
from triptych.parameters import Beams, Penalty, Stride, optional
from triptych.tasks.embed import EmbedRequest
from triptych.tasks.fill_mask import MAX_TOP_K, FillMaskRequest, MaskToken, OneOrManyTargets
from triptych.tasks.tag import Aggregation, TaggedToken, TagRequest
from triptych.tasks.translate import TranslateRequest

DEFAULT_TOP_K = 5
OUTSIDE = "O"
"""The label that is ignored where a request does not say which are."""


class BeamSearch(Closed):
    """`generate_parameters` of a translation."""

    num_beams: Beams | None = None
    length_penalty: Penalty | None = None


class TranslationParameters(Closed):
    """Parameters of `translation`."""

    src_lang: str | None = None
    tgt_lang: str | None = None
    clean_up_tokenization_spaces: Unserved = None
    truncation: Literal["do_not_truncate"] | None = None
    generate_parameters: BeamSearch | None = None


class TranslationBody(Closed):
    """Body of `POST /hf/translate/{model}`."""

    inputs: str
    parameters: TranslationParameters | None = None


class Translated(Open):
    """A translated text."""

    translation_text: str
    finish_reason: FinishReason


class TranslateRoute(TaskRoute):
    """`translation`."""

    task = translate.TASK
    body = TranslationBody
    answer = list[Translated]
    summary = "Translate a text, for `InferenceClient.translation`."

    def convert(self, body: TranslationBody, request: Request, service: Service) -> TaskRequest:
        """The body in the task's terms."""
        given = body.parameters or TranslationParameters()
        search = given.generate_parameters or BeamSearch()
        message = TranslateRequest(
            model=model_of(request, service).name,
            texts=[body.inputs],
            source=given.src_lang,
            target=given.tgt_lang,
            num_beams=search.num_beams,
            length_penalty=search.length_penalty,
        )
        return TaskRequest(self.task, message, label_of(request))

    def answered(self, request: TaskRequest, data: Sequence[Any]) -> list[Translated]:
        """The client reads the first one."""
        return [
            Translated(translation_text=item.text, finish_reason=item.finish_reason)
            for item in data
        ]


class FillMaskParameters(PipelineTruncating):
    """Parameters of `fill_mask`."""

    targets: OneOrManyTargets | None = None
    top_k: Annotated[int, Field(ge=1, le=MAX_TOP_K)] | None = None


class FillMaskBody(Closed):
    """Body of `POST /hf/fill-mask/{model}`."""

    inputs: str
    parameters: FillMaskParameters | None = None


class Filled(Open):
    """One token in place of a mask."""

    score: float
    token: int
    token_str: str
    sequence: str

    @classmethod
    def of(cls, found: MaskToken) -> Filled:
        """A token of the task's response."""
        return cls(
            score=found.score, token=found.token_id, token_str=found.token, sequence=found.text
        )


class FillMaskRoute(TaskRoute):
    """`fill_mask`."""

    task = fill_mask.TASK
    body = FillMaskBody
    answer = list[Filled] | list[list[Filled]]
    summary = "Fill the masks of a text, for `InferenceClient.fill_mask`."

    def convert(self, body: FillMaskBody, request: Request, service: Service) -> TaskRequest:
        """The body in the task's terms."""
        given = body.parameters or FillMaskParameters()
        message = FillMaskRequest(
            model=model_of(request, service).name,
            texts=[body.inputs],
            targets=given.targets,
            top_k=given.top_k or DEFAULT_TOP_K,
            truncate=given.truncates,
        )
        return TaskRequest(self.task, message, label_of(request))

    def answered(
        self, request: TaskRequest, data: Sequence[Any]
    ) -> list[Filled] | list[list[Filled]]:
        """The tokens of the mask; of several masks a list each."""
        (item,) = data
        masks = [[Filled.of(token) for token in mask] for mask in item.masks or ()]
        return masks[0] if len(masks) == 1 else masks


class TokenClassificationParameters(PipelineTruncating):
    """Parameters of `token_classification`."""

    defaults = {"ignore_labels": ()}  # an empty list: no label is ignored

    aggregation_strategy: Aggregation | None = None
    ignore_labels: list[str] | None = optional(f"Default: {OUTSIDE}, the label of no entity.")
    stride: Stride | None = None


class TokenClassificationBody(Closed):
    """Body of `POST /hf/tag/{model}`."""

    inputs: str
    parameters: TokenClassificationParameters | None = None


class TaggedWord(Open):
    """A token with its `entity`, or tokens that were joined with their `entity_group`."""

    entity: str | None = None
    entity_group: str | None = None
    score: float
    word: str
    start: int
    end: int

    @model_serializer(mode="wrap")
    def _given(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {name: value for name, value in serialize(self).items() if value is not None}


@dataclass(frozen=True)
class TaggingRequest(TaskRequest):
    """A task request with what only this route reads."""

    ignored: frozenset[str] = frozenset((OUTSIDE,))


class TagRoute(TaskRoute):
    """`token_classification`."""

    task = tag.TASK
    body = TokenClassificationBody
    answer = list[TaggedWord]
    summary = "Label the tokens of a text, for `InferenceClient.token_classification`."

    def convert(
        self, body: TokenClassificationBody, request: Request, service: Service
    ) -> TaskRequest:
        """The body in the task's terms."""
        given = body.parameters or TokenClassificationParameters()
        ignored = frozenset((OUTSIDE,) if given.ignore_labels is None else given.ignore_labels)
        message = TagRequest(
            model=model_of(request, service).name,
            texts=[body.inputs],
            aggregation=given.aggregation_strategy or "none",
            return_outside=OUTSIDE not in ignored,
            stride=given.stride,
            truncate=given.truncates,
        )
        return TaggingRequest(self.task, message, label_of(request), ignored=ignored)

    def answered(self, request: TaskRequest, data: Sequence[Any]) -> list[TaggedWord]:
        """The tokens whose labels are not ignored."""
        assert isinstance(request, TaggingRequest)
        assert isinstance(request.message, TagRequest)
        name = "entity" if request.message.aggregation == "none" else "entity_group"
        (item,) = data
        return [_tagged(token, name) for token in item.tokens if token.label not in request.ignored]


def _tagged(token: TaggedToken, name: str) -> TaggedWord:
    place = {"word": token.text, "start": token.start, "end": token.end}
    return TaggedWord.model_validate({name: token.label, "score": token.score, **place})


class SimilarityParameters(Truncating):
    """`parameters` of a comparison, in Text Embeddings Inference."""

    prompt_name: str | None = None


class Sentences(Closed):
    """`inputs` of `sentence_similarity`."""

    source_sentence: str
    sentences: Annotated[list[str], Field(min_length=1)]


def _kind(value: object) -> str:
    return "comparison" if isinstance(value, dict | Sentences) else "texts"


class FeaturesBody(Truncating):
    """Body of `POST /hf/embed/{model}`; its options are not below `parameters`."""

    inputs: Annotated[
        Annotated[OneOrMany, Tag("texts")] | Annotated[Sentences, Tag("comparison")],
        Discriminator(_kind),
    ]
    parameters: SimilarityParameters | None = None
    normalize: bool | None = None
    prompt_name: str | None = None
    dimensions: Annotated[int, Field(ge=1, le=MAX_DIMENSIONS)] | None = None
    encoding_format: Literal["float"] | None = None


@dataclass(frozen=True)
class FeaturesRequest(TaskRequest):
    """A task request with what only this route reads."""

    is_comparison: bool = False
    """Whether the cosines of the first text with the others are the answer."""
    dimensions: int | None = None


class EmbedRoute(TaskRoute):
    """The two methods of embedding models."""

    task = TASK
    body = FeaturesBody
    answer = list[float] | list[list[float]]
    summary = (
        "Embed texts, for `feature_extraction` and `sentence_similarity` of `InferenceClient`."
    )

    def convert(self, body: FeaturesBody, request: Request, service: Service) -> TaskRequest:
        """The body in the task's terms."""
        inputs = body.inputs
        is_comparison = isinstance(inputs, Sentences)
        if is_comparison and body.normalize is not None:
            raise InvalidRequest("normalize is for texts alone: leave it out", field="normalize")
        given = body.parameters or SimilarityParameters()
        cuts = given if given.truncate else body
        message = EmbedRequest(
            model=self.model_name(request, service),
            texts=[inputs.source_sentence, *inputs.sentences]
            if isinstance(inputs, Sentences)
            else inputs,
            normalize=body.normalize is not False,
            prompt_name=body.prompt_name or given.prompt_name,
            **cuts.cuts(),
        )
        return FeaturesRequest(
            self.task,
            message,
            label_of(request),
            is_comparison=is_comparison,
            dimensions=body.dimensions,
        )

    def answered(
        self, request: TaskRequest, data: Sequence[Any]
    ) -> list[float] | list[list[float]]:
        """A vector a text, or a cosine a sentence."""
        assert isinstance(request, FeaturesRequest)
        vectors = [shortened(item.embedding, request.dimensions) for item in data]
        if not request.is_comparison:
            return vectors
        first, *others = np.array(vectors)
        cosines: list[float] = (np.array(others) @ first).tolist()
        return cosines
