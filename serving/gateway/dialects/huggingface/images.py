"""Routes for one image: captions, questions, zero-shot classification, boxes."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from inference.errors import InvalidRequest
from inference.tasks import caption, detect, zero_shot
from inference.tasks.shared.loaded_model import LoadedModel
from serving.gateway.dialects.all_or_nothing import ResponseMessage
from serving.gateway.dialects.huggingface.route import (
    PARAMETERS,
    SAMPLING,
    FinishReason,
    HuggingFaceRoute,
    value_at,
)
from serving.gateway.requests.service import TaskRequest, TaskResponse
from triptych.messages import Beams, ClosedMessage, Temperature, TopK, TopP, TypicalP, optional
from triptych.tasks.caption import CaptionRequest
from triptych.tasks.detect import MAX_LABELS as DETECTION_MAX_LABELS
from triptych.tasks.detect import DetectRequest
from triptych.tasks.zero_shot import MAX_LABELS

BASE64 = Field(description="An image as base64 or a data URI.")
NewTokens = Annotated[int, Field(ge=1, le=4096)]


class CaptionSearch(ClosedMessage):
    """`generation_parameters` of a caption."""

    num_beams: Beams | None = None
    max_new_tokens: NewTokens | None = None
    do_sample: bool | None = optional("false: the most likely tokens, whatever else is given.")
    temperature: Temperature | None = None
    top_k: TopK | None = None
    top_p: TopP | None = None
    typical_p: TypicalP | None = None

    def fields(self) -> dict[str, Any]:
        """Fields of the task's message."""
        given: dict[str, Any] = self.model_dump(exclude={"do_sample"}, exclude_none=True)
        if self.do_sample is False:
            search = {name: given[name] for name in given if name not in SAMPLING}
            return search | {"temperature": 0.0}
        # One sample changes nothing but that tokens are sampled.
        return given | ({"best_of": 1} if self.do_sample and self.temperature != 0 else {})


class ImageToTextParameters(ClosedMessage):
    """Parameters of `image_to_text`; the client sends none."""

    max_new_tokens: NewTokens | None = None
    generation_parameters: CaptionSearch | None = None


Question = Annotated[str, Field(pattern=r"\S", description="What is asked about the image.")]


class AskedImage(ClosedMessage):
    """`inputs` of `document_question_answering`."""

    question: Question
    image: Annotated[str, BASE64]


class AskingBody(ClosedMessage):
    """Of `visual_question_answering`, `document_question_answering`, or one that asks nothing."""

    inputs: Annotated[str, BASE64] | AskedImage
    question: Question | None = None
    image: str | None = optional("The same as inputs, which `visual_question_answering` repeats.")

    @property
    def only_input(self) -> str:
        """The image, wherever it is, or what else is read."""
        return self.inputs.image if isinstance(self.inputs, AskedImage) else self.inputs

    @property
    def asked(self) -> str | None:
        """The question about the image."""
        return self.inputs.question if isinstance(self.inputs, AskedImage) else self.question


class ImageToTextBody(AskingBody):
    """Body of `POST /hf/caption/{model}`, where it is not the image itself."""

    parameters: ImageToTextParameters | None = None


class GeneratedText(ResponseMessage):
    """The caption of an image."""

    generated_text: Annotated[str, Field(validation_alias="text")]
    finish_reason: FinishReason


class Answer(ResponseMessage):
    """The answer to a question about an image."""

    answer: Annotated[str, Field(validation_alias="text")]
    finish_reason: FinishReason


class CaptionRoute(HuggingFaceRoute):
    """`image_to_text`, `visual_question_answering` and `document_question_answering`."""

    path = "/hf/caption/{model}"
    task = caption.TASK
    body = ImageToTextBody
    renamed = {**PARAMETERS, "prompt": "question"}
    answer = list[GeneratedText] | list[Answer]
    summary = "Describe an image, or answer a question about it, for `InferenceClient`."
    takes_images = True

    fields = {
        "images": "only_input",
        "prompt": "asked",
        "max_new_tokens": "parameters.max_new_tokens",
    }

    def take(self, body: Any, model: LoadedModel | None) -> dict[str, Any]:
        """The search's own parameters replace those of the request."""
        search = None
        if isinstance(body, ImageToTextBody):
            search = value_at(body, "parameters.generation_parameters")
        return super().take(body, model) | (search.fields() if search else {})

    def check(self, message: CaptionRequest, model: LoadedModel) -> None:
        """Refuse a question to a model that only describes images."""
        if message.prompt and self.task.name in model.sections and not caption.TASK.answers(model):
            raise InvalidRequest(
                f"{model.name} describes images and answers no questions: leave the question out",
                field="prompt",
            )

    def render(
        self, request: TaskRequest, response: TaskResponse
    ) -> list[GeneratedText] | list[Answer]:
        """The client reads the first one."""
        assert isinstance(request.message, CaptionRequest)
        if request.message.prompt is not None:
            return [Answer.copy_of(item) for item in response.data]
        return [GeneratedText.copy_of(item) for item in response.data]


class ZeroShotParameters(ClosedMessage):
    """Parameters of `zero_shot_image_classification`."""

    candidate_labels: Annotated[list[str], Field(min_length=1, max_length=MAX_LABELS)]
    hypothesis_template: str | None = optional("Contains {} where the label belongs.")

    @property
    def templates(self) -> list[str] | None:
        """The only template."""
        return None if self.hypothesis_template is None else [self.hypothesis_template]


class ZeroShotBody(ClosedMessage):
    """Body of `POST /hf/zero-shot/{model}`."""

    inputs: Annotated[str, BASE64]
    parameters: ZeroShotParameters


class LabelScore(ResponseMessage):
    """A label and its probability."""

    label: str
    score: float


class ScoredAnswer(ResponseMessage):
    """An answer to a question about an image, which is a label, and its probability."""

    answer: Annotated[str, Field(validation_alias="label")]
    score: float


class ZeroShotRoute(HuggingFaceRoute):
    """`zero_shot_image_classification`."""

    path = "/hf/zero-shot/{model}"
    task = zero_shot.TASK
    body = ZeroShotBody
    answer = list[LabelScore]
    summary = "Choose among labels, for `InferenceClient.zero_shot_image_classification`."
    fields = {
        "images": "inputs",
        "labels": "parameters.candidate_labels",
        "templates": "parameters.templates",
    }

    def render(self, request: TaskRequest, response: TaskResponse) -> list[LabelScore]:
        (item,) = response.data
        return [LabelScore.copy_of(one) for one in item.labels]


class DetectionParameters(ClosedMessage):
    """Parameters of `object_detection`, and the labels that its client does not send."""

    threshold: Annotated[float, Field(ge=0, le=1)] | None = None
    candidate_labels: (
        Annotated[list[str], Field(min_length=1, max_length=DETECTION_MAX_LABELS)] | None
    ) = optional("What to look for; required by models that name nothing themselves.")


class DetectionBody(ClosedMessage):
    """Body of `POST /hf/detect/{model}`, where it is not the image itself."""

    inputs: Annotated[str, BASE64]
    parameters: DetectionParameters | None = None


class BoundingBox(ResponseMessage):
    """Whole pixels of the upright image, as the pipelines of `transformers` cut them off."""

    xmin: Annotated[int, BeforeValidator(int), Field(validation_alias="x_min")]
    ymin: Annotated[int, BeforeValidator(int), Field(validation_alias="y_min")]
    xmax: Annotated[int, BeforeValidator(int), Field(validation_alias="x_max")]
    ymax: Annotated[int, BeforeValidator(int), Field(validation_alias="y_max")]


class DetectedObject(ResponseMessage):
    """A thing in an image."""

    score: float
    label: str
    box: BoundingBox


class DetectRoute(HuggingFaceRoute):
    """`object_detection`, and zero-shot object detection, for which the client has no method."""

    path = "/hf/detect/{model}"
    task = detect.TASK
    body = DetectionBody
    answer = list[DetectedObject]
    summary = "Find things in an image, for `InferenceClient.object_detection`."
    takes_images = True

    fields = {
        "images": "inputs",
        "labels": "parameters.candidate_labels",
        "threshold": "parameters.threshold",
    }

    def check(self, message: DetectRequest, model: LoadedModel) -> None:
        """Refuse a request without labels to a model that names nothing itself."""
        if self.task.name in model.sections and not self.task.accepts(message, model):
            raise InvalidRequest(
                f"{model.name} finds things by labels, which object_detection has none of: POST "
                "this path JSON with parameters.candidate_labels, or call /v1/detect with labels",
                field="candidate_labels",
            )

    def render(self, request: TaskRequest, response: TaskResponse) -> list[DetectedObject]:
        (item,) = response.data
        return [
            DetectedObject(score=one.score, label=one.label, box=BoundingBox.copy_of(one))
            for one in item.boxes
        ]
