"""Limits of one request, as the gateway is configured."""

from __future__ import annotations

from dataclasses import dataclass, field

from inference.errors import InvalidRequest
from inference.processing.image import ImageLimits


@dataclass(frozen=True)
class TaskLimits:
    """Limits of one request; a model's own limits may be tighter."""

    max_input_tokens: int = 4096
    """Tokens of one text, all its sentences together."""
    max_client_batch_size: int = 32
    """Texts or images in one request."""
    max_best_of: int = 16
    """Sequences generated for one prompt."""
    max_stop_sequences: int = 4
    """Stop strings of one request."""
    max_prompt_images: int = 16
    """Images between the words of one prompt."""
    image: ImageLimits = field(default_factory=ImageLimits)

    def check_batch(self, items: int, name: str) -> None:
        """Raises InvalidRequest when a request holds too many items."""
        if items > self.max_client_batch_size:
            raise InvalidRequest(
                f"{name} holds {items} items, at most {self.max_client_batch_size}: "
                "send several requests",
                field=name,
            )
