"""How a supervisor starts a worker, and what the two say to each other.

The worker's standard input brings one message, then commands of one byte. Its end means that the
supervisor is gone.
"""

from __future__ import annotations

import os
import pickle
from dataclasses import dataclass
from pathlib import Path

from serving.gateway.server.shared_memory import Segment
from serving.settings.gateway_settings import GatewaySettings

DRAIN = b"d"
"""Let running requests finish, then end."""
ABORT = b"a"
"""End running requests now."""
_LENGTH_BYTES = 4
_KEYS_OF_BODIES = 1024
"""Whose large bodies arrive at one moment."""


@dataclass(frozen=True)
class RunFolder:
    """Files of one run of a gateway, closed to other users; they are removed at its end."""

    path: Path

    @property
    def counts(self) -> Path:
        """The workers' shared memory."""
        return self.path / "counts"

    @property
    def metrics(self) -> Path:
        """The workers' counters and histograms."""
        return self.path / "metrics"

    @property
    def downloads(self) -> Path:
        """Translated files until they are fetched."""
        return self.path / "downloads"

    def create(self) -> None:
        """Make the folders."""
        self.metrics.mkdir()
        self.downloads.mkdir()


@dataclass(frozen=True)
class Start:
    """The message to a new worker.

    Attributes:
        settings: Of the gateway.
        number: The worker's, from 0; the one that replaces it has the same.
        http_fd: Descriptor of the listening socket, which the worker inherits.
        grpc_port: Reserved by the supervisor for the workers.
        folder: Of this run.
    """

    settings: GatewaySettings
    number: int
    http_fd: int
    grpc_port: int
    folder: RunFolder

    def segment(self) -> Segment:
        """The workers' shared memory."""
        return segment_of(self.settings, self.folder)

    def encoded(self) -> bytes:
        """The message as it is sent."""
        content = pickle.dumps(self)
        return len(content).to_bytes(_LENGTH_BYTES) + content

    @staticmethod
    def read(descriptor: int) -> Start:
        """Read the message, and nothing beyond.

        Raises:
            EOFError: the supervisor has ended.
        """
        length = int.from_bytes(_exactly(descriptor, _LENGTH_BYTES))
        start = pickle.loads(_exactly(descriptor, length))
        assert isinstance(start, Start)
        return start


def segment_of(settings: GatewaySettings, folder: RunFolder) -> Segment:
    """The memory that the workers of a gateway share.

    A worker counts a request before it is refused, so that it has one key more than it admits; and
    bodies of requests that it has not admitted yet.
    """
    keys = settings.max_concurrent_requests + 1 + _KEYS_OF_BODIES
    return Segment(folder.counts, settings.workers, keys)


def _exactly(descriptor: int, length: int) -> bytes:
    content = b""
    while len(content) < length:
        part = os.read(descriptor, length - len(content))
        if not part:
            raise EOFError("the supervisor has ended")
        content += part
    return content
