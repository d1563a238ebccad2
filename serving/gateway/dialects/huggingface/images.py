"""Routes for one image: captions, questions, zero-shot classification, boxes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import Request
from pydantic import Field

from inference.errors import InvalidRequest
from inference.tasks import caption, detect, zero_shot
from serving.gateway.dialects.all_or_nothing import Closed, Open
from serving.gateway.dialects.huggingface.route import (
    PARAMETERS,
    PLACEHOLDER,
    FinishReason,
    TaskRoute,
    label_of,
    model_of,
)
from serving.gateway.requests.service import Service, TaskRequest
from triptych.parameters import Beams, Temperature, TopK, TopP, TypicalP, optional
from triptych.tasks.caption import CaptionRequest
from triptych.tasks.detect import MAX_LABELS as DETECTION_MAX_LABELS
from triptych.tasks.detect import DetectRequest
from triptych.tasks.zero_shot import MAX_LABELS, ZeroShotRequest

BASE64 = Field(description="An image as base64 or a data URI.")
NewTokens = Annotated[int, Field(ge=1, le=4096)]


class CaptionSearch(Closed):
    """`generation_parameters` of a caption."""

    num_beams: Beams | None = None
    max_new_tokens: NewTokens | None = None
    do_sample: bool | None = optional("false: the most likely tokens, whatever else is given.")
    temperature: Temperature | None = None
    top_k: TopK | None = None
    top_p: TopP | None = None
    typical_p: TypicalP | None = None

    def sampling(self) -> dict[str, Any]:
        """The task's sampling parameters."""
        if self.do_sample is False:
            return {"temperature": 0.0}
        names = {"temperature", "top_k", "top_p", "typical_p"}
        given: dict[str, Any] = self.model_dump(include=names, exclude_none=True)
        # One sample changes nothing but that tokens are sampled.
        return given | ({"best_of": 1} if self.do_sample and self.temperature != 0 else {})


class ImageToTextParameters(Closed):
    """Parameters of `image_to_text`; the client sends none."""

    max_new_tokens: NewTokens | None = None
    generation_parameters: CaptionSearch | None = None


Question = Annotated[str, Field(min_length=1, description="What is asked about the image.")]


class AskedImage(Closed):
    """`inputs` of `document_question_answering`."""

    question: Question
    image: Annotated[str, BASE64]


class ImageToTextBody(Closed):
    """Body of `POST /hf/caption/{model}`, where it is not the image itself."""

    inputs: Annotated[str, BASE64] | AskedImage
    parameters: ImageToTextParameters | None = None
    question: Question | None = None
    image: str | None = optional("The same as inputs, which `visual_question_answering` repeats.")

    @property
    def asked(self) -> tuple[str, str | None]:
        """The image, and the question about it."""
        if isinstance(self.inputs, AskedImage):
            return self.inputs.image, self.inputs.question
        return self.inputs, self.question


class GeneratedText(Open):
    """The caption of an image."""

    generated_text: str
    finish_reason: FinishReason


class Answer(Open):
    """The answer to a question about an image."""

    answer: str
    finish_reason: FinishReason


class CaptionRoute(TaskRoute):
    """`image_to_text`, `visual_question_answering` and `document_question_answering`."""

    task = caption.TASK
    body = ImageToTextBody
    renamed = {**PARAMETERS, "prompt": "question"}
    answer = list[GeneratedText] | list[Answer]
    summary = "Describe an image, or answer a question about it, for `InferenceClient`."
    takes_images = True

    def convert(
        self, body: ImageToTextBody | bytes, request: Request, service: Service
    ) -> TaskRequest:
        """The image, or the body in the task's terms."""
        given, model = ImageToTextParameters(), model_of(request, service)
        image, question = (body, None) if isinstance(body, bytes) else body.asked
        if isinstance(body, ImageToTextBody):
            given = body.parameters or given
        if question and self.task.name in model.sections and not caption.TASK.answers(model):
            raise InvalidRequest(
                f"{model.name} describes images and answers no questions: leave the question out",
                field="prompt",
            )
        search = given.generation_parameters or CaptionSearch()
        message = CaptionRequest(
            model=model.name,
            images=[PLACEHOLDER],
            prompt=question,
            num_beams=search.num_beams,
            max_new_tokens=search.max_new_tokens or given.max_new_tokens,
            **search.sampling(),
        )
        return TaskRequest(self.task, message, label_of(request), images=[image])

    def answered(
        self, request: TaskRequest, data: Sequence[Any]
    ) -> list[GeneratedText] | list[Answer]:
        """The client reads the first one."""
        assert isinstance(request.message, CaptionRequest)
        if request.message.prompt is not None:
            return [Answer(answer=item.text, finish_reason=item.finish_reason) for item in data]
        return [
            GeneratedText(generated_text=item.text, finish_reason=item.finish_reason)
            for item in data
        ]


class ZeroShotParameters(Closed):
    """Parameters of `zero_shot_image_classification`."""

    candidate_labels: Annotated[list[str], Field(min_length=1, max_length=MAX_LABELS)]
    hypothesis_template: str | None = optional("Contains {} where the label belongs.")


class ZeroShotBody(Closed):
    """Body of `POST /hf/zero-shot/{model}`."""

    inputs: Annotated[str, BASE64]
    parameters: ZeroShotParameters


class LabelScore(Open):
    """A label and its probability."""

    label: str
    score: float


class ZeroShotRoute(TaskRoute):
    """`zero_shot_image_classification`."""

    task = zero_shot.TASK
    body = ZeroShotBody
    answer = list[LabelScore]
    summary = "Choose among labels, for `InferenceClient.zero_shot_image_classification`."
    takes_images = False

    def convert(self, body: ZeroShotBody, request: Request, service: Service) -> TaskRequest:
        """The body in the task's terms."""
        template = body.parameters.hypothesis_template
        message = ZeroShotRequest(
            model=model_of(request, service).name,
            images=[PLACEHOLDER],
            labels=body.parameters.candidate_labels,
            templates=None if template is None else [template],
        )
        return TaskRequest(self.task, message, label_of(request), images=[body.inputs])

    def answered(self, request: TaskRequest, data: Sequence[Any]) -> list[LabelScore]:
        """The labels, best first."""
        (item,) = data
        return [LabelScore(label=one.label, score=one.score) for one in item.labels]


class DetectionParameters(Closed):
    """Parameters of `object_detection`, and the labels that its client does not send."""

    threshold: Annotated[float, Field(ge=0, le=1)] | None = None
    candidate_labels: (
        Annotated[list[str], Field(min_length=1, max_length=DETECTION_MAX_LABELS)] | None
    ) = optional("What to look for; required by models that name nothing themselves.")


class DetectionBody(Closed):
    """Body of `POST /hf/detect/{model}`, where it is not the image itself."""

    inputs: Annotated[str, BASE64]
    parameters: DetectionParameters | None = None


class BoundingBox(Open):
    """Whole pixels of the upright image, as the pipelines of `transformers` cut them off."""

    xmin: int
    ymin: int
    xmax: int
    ymax: int


class DetectedObject(Open):
    """A thing in an image."""

    score: float
    label: str
    box: BoundingBox


class DetectRoute(TaskRoute):
    """`object_detection`, and zero-shot object detection, for which the client has no method."""

    task = detect.TASK
    body = DetectionBody
    answer = list[DetectedObject]
    summary = "Find things in an image, for `InferenceClient.object_detection`."
    takes_images = True

    def convert(
        self, body: DetectionBody | bytes, request: Request, service: Service
    ) -> TaskRequest:
        """The image, or the body in the task's terms."""
        given, model = DetectionParameters(), model_of(request, service)
        if isinstance(body, DetectionBody):
            given = body.parameters or given
        message = DetectRequest(
            model=model.name,
            images=[PLACEHOLDER],
            labels=given.candidate_labels,
            threshold=given.threshold,
        )
        if self.task.name in model.sections and not self.task.accepts(message, model):
            raise InvalidRequest(
                f"{model.name} finds things by labels, which object_detection has none of: POST "
                "this path JSON with parameters.candidate_labels, or call /v1/detect with labels",
                field="candidate_labels",
            )
        image = body.inputs if isinstance(body, DetectionBody) else body
        return TaskRequest(self.task, message, label_of(request), images=[image])

    def answered(self, request: TaskRequest, data: Sequence[Any]) -> list[DetectedObject]:
        """The boxes, best first."""
        (item,) = data
        return [
            DetectedObject(
                score=box.score,
                label=box.label,
                box=BoundingBox(
                    xmin=int(box.x_min),
                    ymin=int(box.y_min),
                    xmax=int(box.x_max),
                    ymax=int(box.y_max),
                ),
            )
            for box in item.boxes
        ]
