"""Task requests as every protocol hands them to the service, and what they get back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from inference.tasks.shared.image_inputs import ImageInput
from inference.tasks.shared.served_task import AnyTask
from serving.gateway.observability.timings import Timings
from triptych.messages import Request, Response


@dataclass(frozen=True)
class TaskRequest:
    """A validated request of one task, whatever protocol it arrived by."""

    task: AnyTask
    message: Request
    route: str
    """Label of the metrics."""
    images: Sequence[ImageInput] = ()
    """The images themselves; `message.images` are placeholders."""

    @property
    def streams(self) -> bool:
        """Whether the message requests a stream."""
        return bool(getattr(self.message, "stream", None))


@dataclass(frozen=True)
class Answer:
    """A response and its timings."""

    response: Response[Any]
    timings: Timings
