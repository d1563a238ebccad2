"""`object_detection`: the boxes of things in one image."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import Request
from pydantic import Field

from inference.errors import InvalidRequest
from inference.tasks import detect
from serving.gateway.dialects.all_or_nothing import Closed, Open
from serving.gateway.dialects.huggingface.images import BASE64
from serving.gateway.dialects.huggingface.route import PLACEHOLDER, TaskRoute, label_of, model_of
from serving.gateway.requests.service import Service, TaskRequest
from triptych.parameters import optional
from triptych.tasks.detect import MAX_LABELS, DetectRequest


class DetectionParameters(Closed):
    """Parameters of `object_detection`, and the labels that its client does not send."""

    threshold: Annotated[float, Field(ge=0, le=1)] | None = None
    candidate_labels: Annotated[list[str], Field(min_length=1, max_length=MAX_LABELS)] | None = (
        optional("What to look for; required by models that name nothing themselves.")
    )


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
