"""Rows to requests of a task, and the responses' items to one item a row.

Several rows are one request, as clients send them. A row that fails in it is requested again alone,
so that its error is the one that the gateway would return, whatever the other rows were.
"""

from __future__ import annotations

import dataclasses
import hashlib
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any, cast, get_args

from inference.errors import InternalError, ServingError
from inference.tasks.shared.items import item_error
from inference.tasks.shared.loaded_model import TaskLimits
from inference.tasks.shared.model_calls import Call, GenerateCall, Outcome
from inference.tasks.shared.served_task import AnyTask, Plan
from serving.batch.rows import Row
from serving.local_model import LocalModel
from triptych.messages import Item, Request, Usage
from triptych.task import IMAGES

SEQUENCES = 32
"""Rows of a request of a generator: they join the engine's batch one by one in any case."""
BATCHED = 256
"""The same of a stateless graph: rows of similar length share a call."""


@dataclass(frozen=True)
class Submitted:
    """A request whose calls run, or why there is none."""

    rows: tuple[int, ...]
    """Their positions in the shard."""
    plan: Plan | ServingError
    futures: tuple[Future[Outcome], ...] = ()


@dataclass(frozen=True)
class RowRequests:
    """Answers rows with a model of this process.

    Attributes:
        local: The model.
        task: What is requested.
        template: A request of the task with one row in the place of all.
        field: The request's field that holds the rows.
        seed: What samples are drawn from, unless the request has a seed.
    """

    local: LocalModel
    task: AnyTask
    template: Request
    field: str
    seed: int
    _submitting: threading.Lock = dataclasses.field(
        default_factory=threading.Lock, repr=False, compare=False
    )
    """Held by one shard at a time, so that shards end one after the other and the engine runs on;
    if their rows mixed in its queue, they would end together and leave it without any."""

    def answers(self, rows: Sequence[Row]) -> tuple[list[Item], Usage]:
        """One item for each row of a shard, in order, and the tokens of all."""
        items: dict[int, Item] = {}
        usages: list[Usage] = []
        valid = []
        for position, row in enumerate(rows):
            if isinstance(row.value, ServingError):
                items[position] = self._failed(row.value)
            else:
                valid.append(position)
        if self.field != IMAGES:  # similar lengths need less padding; the longest begin first
            valid.sort(key=lambda position: -len(cast(str, rows[position].value)))
        size = self._request_rows
        chunks = [tuple(valid[start : start + size]) for start in range(0, len(valid), size)]
        with self._submitting:
            submitted = [self._submit(rows, chunk) for chunk in chunks]
        for one in submitted:
            for position, item in zip(one.rows, self._finish(one, usages), strict=True):
                if item.error is not None and len(one.rows) > 1:
                    (item,) = self._finish(self._submit(rows, (position,)), usages)
                items[position] = item
        return [items[position] for position in range(len(rows))], _total(usages)

    @property
    def _request_rows(self) -> int:
        if self.local.model.manifest.generator is not None:
            return SEQUENCES
        most = self.task.most_items(self.template)
        return BATCHED if most is None else min(BATCHED, most)

    def _submit(self, rows: Sequence[Row], chunk: tuple[int, ...]) -> Submitted:
        """Plan a request of rows and submit its calls."""
        values: list[Any] = [rows[position].value for position in chunk]
        is_image = self.field == IMAGES
        texts = [""] * len(values) if is_image else values
        message = self.template.model_copy(update={self.field: texts})
        model = replace(self.local.model, task_limits=TaskLimits(max_client_batch_size=BATCHED))
        images = values if is_image else ()
        try:
            plan = self.task.prepare(message, images, model)
        except ServingError as error:
            return Submitted(chunk, error)
        first = rows[chunk[0]]
        calls = [self._seeded(call, first, number) for number, call in enumerate(plan.calls)]
        return Submitted(chunk, plan, tuple(self.local.submit(call) for call in calls))

    def _seeded(self, call: Call, row: Row, number: int) -> Call:
        """The call with a seed of its own, so that a shard which is made again is the same one."""
        if not isinstance(call, GenerateCall) or call.options.seed is not None:
            return call
        place = f"{self.seed} {row.file} {row.number} {number}".encode()
        seed = int.from_bytes(hashlib.sha256(place).digest()[:8]) >> 1
        return replace(call, options=call.options.model_copy(update={"seed": seed}))

    def _finish(self, submitted: Submitted, usages: list[Usage]) -> Iterator[Item]:
        """The items of a request in the order of its rows; waits for its calls."""
        outcomes = [future.result() for future in submitted.futures]
        try:
            if isinstance(submitted.plan, ServingError):
                raise submitted.plan
            plan = submitted.plan
            while (following := plan.following(outcomes)) is not None:
                plan = following
                futures = [self.local.submit(call) for call in plan.calls]
                outcomes = [future.result() for future in futures]
            response = plan.finish(outcomes)
        except ServingError as error:
            return iter([self._failed(error)] * len(submitted.rows))
        if len(response.data) != len(submitted.rows):
            raise InternalError(f"{self.task.name} returned {len(response.data)} items")
        usages.append(response.usage)
        return iter(response.data)

    def _failed(self, error: ServingError) -> Item:
        (item,) = get_args(self.task.declaration.response.model_fields["data"].annotation)
        failed: Item = item(index=0, error=item_error(error))
        return failed


def _total(usages: Sequence[Usage]) -> Usage:
    return Usage(
        prompt_tokens=sum(one.prompt_tokens for one in usages),
        completion_tokens=sum(one.completion_tokens for one in usages),
    )
