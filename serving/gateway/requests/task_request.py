"""Task requests as every protocol passes them to the service."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from inference.tasks.shared.image_inputs import ImageInput
from inference.tasks.shared.served_task import AnyTask
from triptych.messages import Request, Response

TaskResponse: TypeAlias = Response[Any]


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
