"""Routes for texts: `translation`, `fill_mask`, `token_classification`, answers, vectors."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BeforeValidator, Discriminator, Field, Tag

from inference.errors import InvalidRequest
from inference.tasks import answer, fill_mask, tag, translate
from inference.tasks.embed import TASK
from inference.tasks.shared.loaded_model import LoadedModel
from inference.tasks.shared.model_calls import Array
from serving.gateway.dialects.all_or_nothing import (
    MAX_DIMENSIONS,
    ConvertedRequest,
    ResponseMessage,
    SparseMessage,
    shorten,
)
from serving.gateway.dialects.huggingface.route import (
    FinishReason,
    HuggingFaceRoute,
    PipelineTruncating,
    Truncating,
    Unserved,
    value_at,
)
from serving.gateway.requests.service import TaskRequest, TaskResponse
from triptych.messages import MAX_STRIDE, Beams, ClosedMessage, OneOrMany, Penalty, Stride, optional
from triptych.tasks.answer import MAX_ANSWER_TOKENS, MAX_ANSWERS
from triptych.tasks.fill_mask import MAX_TOP_K, OneOrManyTargets
from triptych.tasks.tag import Aggregation, TagRequest

OUTSIDE = "O"
"""The label that is ignored where a request does not say which are."""


class BeamSearch(ClosedMessage):
    """`generate_parameters` of a translation."""

    num_beams: Beams | None = None
    length_penalty: Penalty | None = None


class TranslationParameters(ClosedMessage):
    """Parameters of `translation`."""

    src_lang: str | None = None
    tgt_lang: str | None = None
    clean_up_tokenization_spaces: Unserved = None
    truncation: Literal["do_not_truncate"] | None = None
    generate_parameters: BeamSearch | None = None


class TranslationBody(ClosedMessage):
    """Body of `POST /hf/translate/{model}`."""

    inputs: str
    parameters: TranslationParameters | None = None


class Translated(ResponseMessage):
    """A translated text."""

    translation_text: Annotated[str, Field(validation_alias="text")]
    finish_reason: FinishReason


class TranslateRoute(HuggingFaceRoute):
    """`translation`."""

    path = "/hf/translate/{model}"
    task = translate.TASK
    body = TranslationBody
    answer = list[Translated]
    summary = "Translate a text, for `InferenceClient.translation`."

    fields = {
        "texts": "inputs",
        "source": "parameters.src_lang",
        "target": "parameters.tgt_lang",
        "num_beams": "parameters.generate_parameters.num_beams",
        "length_penalty": "parameters.generate_parameters.length_penalty",
    }

    def render(self, request: TaskRequest, response: TaskResponse) -> list[Translated]:
        """The client reads the first one."""
        return [Translated.copy_of(item) for item in response.data]


class FillMaskParameters(PipelineTruncating):
    """Parameters of `fill_mask`."""

    targets: OneOrManyTargets | None = None
    top_k: Annotated[int, Field(ge=1, le=MAX_TOP_K)] | None = None


class FillMaskBody(ClosedMessage):
    """Body of `POST /hf/fill-mask/{model}`."""

    inputs: str
    parameters: FillMaskParameters | None = None


class Filled(ResponseMessage):
    """One token in place of a mask."""

    score: float
    token: Annotated[int, Field(validation_alias="token_id")]
    token_str: Annotated[str, Field(validation_alias="token")]
    sequence: Annotated[str, Field(validation_alias="text")]


class FillMaskRoute(HuggingFaceRoute):
    """`fill_mask`."""

    path = "/hf/fill-mask/{model}"
    task = fill_mask.TASK
    body = FillMaskBody
    answer = list[Filled] | list[list[Filled]]
    summary = "Fill the masks of a text, for `InferenceClient.fill_mask`."

    fields = {
        "texts": "inputs",
        "targets": "parameters.targets",
        "top_k": "parameters.top_k",
        "truncate": "parameters.truncates",
    }

    def render(
        self, request: TaskRequest, response: TaskResponse
    ) -> list[Filled] | list[list[Filled]]:
        """The tokens of the mask; of several masks a list each."""
        (item,) = response.data
        masks = [[Filled.copy_of(token) for token in mask] for mask in item.masks or ()]
        return masks[0] if len(masks) == 1 else masks


class TokenClassificationParameters(PipelineTruncating):
    """Parameters of `token_classification`."""

    defaults = {"ignore_labels": ()}  # an empty list: no label is ignored

    aggregation_strategy: Aggregation | None = None
    ignore_labels: list[str] | None = optional(f"Default: {OUTSIDE}, the label of no entity.")
    stride: Stride | None = None

    @property
    def returns_outside(self) -> bool:
        """Whether tokens of no entity are returned."""
        return self.ignore_labels is not None and OUTSIDE not in self.ignore_labels


class TokenClassificationBody(ClosedMessage):
    """Body of `POST /hf/tag/{model}`."""

    inputs: str
    parameters: TokenClassificationParameters | None = None


class TaggedWord(SparseMessage):
    """A token with its `entity`, or tokens that were joined with their `entity_group`."""

    entity: str | None = None
    entity_group: str | None = None
    score: float
    word: str
    start: int
    end: int


class TagRoute(HuggingFaceRoute):
    """`token_classification`."""

    path = "/hf/tag/{model}"
    task = tag.TASK
    body = TokenClassificationBody
    answer = list[TaggedWord]
    summary = "Label the tokens of a text, for `InferenceClient.token_classification`."

    fields = {
        "texts": "inputs",
        "aggregation": "parameters.aggregation_strategy",
        "return_outside": "parameters.returns_outside",
        "stride": "parameters.stride",
        "truncate": "parameters.truncates",
    }

    def render(self, request: TaskRequest, response: TaskResponse) -> list[TaggedWord]:
        """The tokens whose labels are not ignored."""
        assert isinstance(request, ConvertedRequest)
        assert isinstance(request.message, TagRequest)
        name = "entity" if request.message.aggregation == "none" else "entity_group"
        given = value_at(request.body, "parameters.ignore_labels")
        ignored = (OUTSIDE,) if given is None else given
        (item,) = response.data
        return [
            TaggedWord(
                **{name: one.label}, score=one.score, word=one.text, start=one.start, end=one.end
            )
            for one in item.tokens
            if one.label not in ignored
        ]


class QuestionAnsweringParameters(ClosedMessage):
    """Parameters of `question_answering`."""

    align_to_words: bool | None = None
    doc_stride: Annotated[int, Field(ge=0, le=MAX_STRIDE)] | None = None
    handle_impossible_answer: bool | None = None
    max_answer_len: Annotated[int, Field(ge=1, le=MAX_ANSWER_TOKENS)] | None = None
    max_question_len: Unserved = None
    max_seq_len: Annotated[int, Field(ge=1)] | None = None
    top_k: Annotated[int, Field(ge=1, le=MAX_ANSWERS)] | None = None

    @property
    def null_threshold(self) -> float | None:
        """Of the null answer, which competes with the others by its score."""
        return 0.0 if self.handle_impossible_answer else None


class Question(ClosedMessage):
    """`inputs` of `question_answering`."""

    question: str
    context: str


def _without_table(value: object) -> object:
    if isinstance(value, dict) and "table" in value:
        raise ValueError("table_question_answering is not served: give question and context")
    return value


class QuestionAnsweringBody(ClosedMessage):
    """Body of `POST /hf/answer/{model}`."""

    inputs: Annotated[Question, BeforeValidator(_without_table)]
    parameters: QuestionAnsweringParameters | None = None


class FoundInContext(ResponseMessage):
    """An answer; of a question without one, the empty text."""

    answer: Annotated[str, Field(validation_alias="text")]
    score: float
    start: int
    end: int


class AnswerRoute(HuggingFaceRoute):
    """`question_answering`."""

    path = "/hf/answer/{model}"
    task = answer.TASK
    body = QuestionAnsweringBody
    answer = FoundInContext | list[FoundInContext]
    summary = "Find the answer to a question, for `InferenceClient.question_answering`."

    fields = {
        "question": "inputs.question",
        "passages": "inputs.context",
        "align_to_words": "parameters.align_to_words",
        "stride": "parameters.doc_stride",
        "null_threshold": "parameters.null_threshold",
        "max_answer_tokens": "parameters.max_answer_len",
        "max_window_tokens": "parameters.max_seq_len",
        "n": "parameters.top_k",
    }
    renamed = {
        field: path if path.startswith("inputs") else path.removeprefix("parameters.")
        for field, path in fields.items()
    } | {"null_threshold": "handle_impossible_answer"}

    def render(
        self, request: TaskRequest, response: TaskResponse
    ) -> FoundInContext | list[FoundInContext]:
        """The answers; one alone is no list, as the pipeline of `transformers` returned it."""
        (item,) = response.data
        found = [FoundInContext.copy_of(one) for one in item.answers or ()]
        return found[0] if len(found) == 1 else found


class SimilarityParameters(Truncating):
    """`parameters` of a comparison, in Text Embeddings Inference."""

    prompt_name: str | None = None


class Sentences(ClosedMessage):
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


class EmbedRoute(HuggingFaceRoute):
    """The two methods of embedding models."""

    path = "/hf/embed/{model}"
    task = TASK
    body = FeaturesBody
    answer = list[float] | list[list[float]]
    summary = (
        "Embed texts, for `feature_extraction` and `sentence_similarity` of `InferenceClient`."
    )

    def take(self, body: FeaturesBody, model: LoadedModel | None) -> dict[str, Any]:
        """Texts alone, or a sentence and those that it is compared with."""
        inputs = body.inputs
        if isinstance(inputs, Sentences):
            if body.normalize is not None:
                raise InvalidRequest(
                    "normalize is for texts alone: leave it out", field="normalize"
                )
            inputs = [inputs.source_sentence, *inputs.sentences]
        given = body.parameters or SimilarityParameters()
        cuts = given if given.truncate else body
        return {
            "texts": inputs,
            "normalize": body.normalize is not False,
            "prompt_name": body.prompt_name or given.prompt_name,
            **cuts.cuts(),
        }

    def render(self, request: TaskRequest, response: TaskResponse) -> list[Array] | list[float]:
        """A vector a text, or a cosine a sentence."""
        assert isinstance(request, ConvertedRequest)
        body = request.body
        vectors = [shorten(item.embedding, body.dimensions) for item in response.data]
        if not isinstance(body.inputs, Sentences):
            return vectors
        first, *others = np.array(vectors)
        cosines: list[float] = (np.array(others) @ first).tolist()
        return cosines
