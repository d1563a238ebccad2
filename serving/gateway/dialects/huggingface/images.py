"""`image_to_text` and `zero_shot_image_classification`: one image a request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import Request
from pydantic import Field

from inference.tasks import caption, zero_shot
from inference.tasks.shared.served_task import AnyTask
from serving.gateway.dialects.all_or_nothing import Closed, Open
from serving.gateway.dialects.huggingface.route import (
    PLACEHOLDER,
    TaskRoute,
    label_of,
    model_of,
    read_image,
)
from serving.gateway.http.bodies import read_json
from serving.gateway.requests.service import Service
from serving.gateway.requests.task_request import TaskRequest
from triptych.parameters import Beams, Temperature, TopK, TopP, TypicalP, optional
from triptych.tasks.caption import CaptionRequest
from triptych.tasks.zero_shot import MAX_LABELS, ZeroShotRequest

_BASE64 = Field(description="An image as base64 or a data URI.")
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


class ImageToTextBody(Closed):
    """Body of `POST /hf/caption/{model}`, where it is not the image itself."""

    inputs: Annotated[str, _BASE64]
    parameters: ImageToTextParameters | None = None


class GeneratedText(Open):
    """The caption of an image."""

    generated_text: str


class CaptionRoute(TaskRoute):
    """`image_to_text`."""

    task = caption.TASK
    body = ImageToTextBody
    answer = list[GeneratedText]
    summary = "Describe an image, for `InferenceClient.image_to_text`."
    takes_images = True

    async def parse(self, request: Request, task: AnyTask, service: Service) -> TaskRequest:
        """The image, or the body in the task's terms."""
        body = await read_image(request, ImageToTextBody, service)
        given = ImageToTextParameters()
        if isinstance(body, ImageToTextBody):
            given = body.parameters or given
        search = given.generation_parameters or CaptionSearch()
        image = body.inputs if isinstance(body, ImageToTextBody) else body
        message = CaptionRequest(
            model=model_of(request, service).name,
            images=[PLACEHOLDER],
            num_beams=search.num_beams,
            max_new_tokens=search.max_new_tokens or given.max_new_tokens,
            **search.sampling(),
        )
        return TaskRequest(task, message, label_of(request), images=[image])

    def answered(self, request: TaskRequest, data: Sequence[Any]) -> list[GeneratedText]:
        """The client reads the first one."""
        return [GeneratedText(generated_text=item.text) for item in data]


class ZeroShotParameters(Closed):
    """Parameters of `zero_shot_image_classification`."""

    candidate_labels: Annotated[list[str], Field(min_length=1, max_length=MAX_LABELS)]
    hypothesis_template: str | None = optional("Contains {} where the label belongs.")


class ZeroShotBody(Closed):
    """Body of `POST /hf/zero-shot/{model}`."""

    inputs: Annotated[str, _BASE64]
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

    async def parse(self, request: Request, task: AnyTask, service: Service) -> TaskRequest:
        """The body in the task's terms."""
        body = await read_json(request, ZeroShotBody, service)
        template = body.parameters.hypothesis_template
        message = ZeroShotRequest(
            model=model_of(request, service).name,
            images=[PLACEHOLDER],
            labels=body.parameters.candidate_labels,
            templates=None if template is None else [template],
        )
        return TaskRequest(task, message, label_of(request), images=[body.inputs])

    def answered(self, request: TaskRequest, data: Sequence[Any]) -> list[LabelScore]:
        """The labels, best first."""
        (item,) = data
        return [LabelScore(label=one.label, score=one.score) for one in item.labels]
