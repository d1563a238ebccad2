"""What a worker has in common with the others: address, counts, metrics, files, supervisor."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import socket
from collections.abc import Callable, Iterator

from prometheus_client import values

from serving.gateway.dialects.libretranslate.downloads import FolderDownloads
from serving.gateway.observability.metrics import Metrics
from serving.gateway.server.shared_counts import Field, SharedCounts
from serving.gateway.server.worker_process import ABORT, DRAIN, Start, segment_of

BEAT_S = 0.25
"""Between two beats; with each, the worker publishes how many of its calls wait."""
_FORGET_EVERY_S = 60.0
"""Between two looks for translated files that were not fetched in time."""


class Share:
    """One worker's share of a gateway.

    Args:
        start: The supervisor's message.
        commands: Descriptor of the pipe on which commands follow.
    """

    def __init__(self, start: Start, commands: int) -> None:
        self.http_socket = socket.socket(fileno=start.http_fd)
        self.grpc_port = start.grpc_port
        self._segment = segment_of(start.settings, start.folder)
        self.counts = SharedCounts(self._segment, start.number)
        # A worker continues the files of the one that it replaces: counters never fall.
        values.ValueClass = values.MultiProcessValue(lambda: start.number)  # type: ignore[no-untyped-call]
        self.metrics = Metrics(start.folder.metrics)
        self.downloads = FolderDownloads(start.folder.downloads)
        self._start = start
        self._commands = commands
        self._is_orphan = False

    async def beat(self, queued: Callable[[], int]) -> None:
        """Report that the event loop runs, until cancelled.

        Args:
            queued: Calls of this worker that wait to be sent to Triton.
        """
        beats = self._segment.place(self._start.number, Field.BEATS)
        forgot_s = asyncio.get_running_loop().time()
        while True:
            self._segment.words[beats] += 1
            self.counts.load(queued())
            now_s = asyncio.get_running_loop().time()
            if now_s - forgot_s > _FORGET_EVERY_S:
                forgot_s = now_s
                self.downloads.forget()
            await asyncio.sleep(BEAT_S)

    @contextlib.contextmanager
    def follow(self, drain: Callable[[], None], abort: Callable[[], None]) -> Iterator[None]:
        """Follow the supervisor's commands; its end means to drain.

        Args:
            drain: Called once or more often.
            abort: Called once or more often, after `drain`.
        """
        loop = asyncio.get_running_loop()

        def on_command() -> None:
            given = os.read(self._commands, 64)
            if not given:
                self._is_orphan = True
                loop.remove_reader(self._commands)
            if not given or DRAIN in given:
                drain()
            if ABORT in given:
                abort()

        loop.add_reader(self._commands, on_command)
        try:
            yield
        finally:
            loop.remove_reader(self._commands)

    def close(self) -> None:
        """Remove the files of this run, if the supervisor was killed and cannot."""
        if self._is_orphan:
            shutil.rmtree(self._start.folder.path, ignore_errors=True)
