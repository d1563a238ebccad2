"""What runs a stateless graph, whatever the runtime."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Protocol

import numpy as np


class Sessions(Protocol):
    """A graph that computes the outputs it is asked for. Used by one thread."""

    def run(
        self, outputs: Collection[str], feed: Mapping[str, np.ndarray[Any, Any]]
    ) -> dict[str, np.ndarray[Any, Any]]:
        """The named outputs."""
        ...

    def warm_up(self) -> None:
        """Run once on zeros, so that the first request finds memory and threads."""
        ...

    def error_text(self, error: Exception) -> str:
        """An error of `run` on one line."""
        ...
