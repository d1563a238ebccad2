"""The serving half of a task: the base class of `inference/tasks` and its registry's functions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Generic, TypeAlias, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from inference.bundle.manifest import Manifest
from inference.errors import BundleError, InvalidRequest
from inference.processing.terms import StoredTerms
from inference.tasks.shared.image_inputs import ImageInput
from inference.tasks.shared.loaded_model import LoadedModel
from inference.tasks.shared.model_calls import Call, Outcome, size_of
from inference.tasks.shared.needs import Need
from inference.tasks.shared.streaming import Streaming
from triptych.errors import one_line
from triptych.messages import Request, Response
from triptych.task import Task


class TaskConfig(BaseModel):
    """Base of the manifest's sections, one a task; without fields for a task without data."""

    model_config = ConfigDict(frozen=True, extra="forbid")


AnyRequest = TypeVar("AnyRequest", bound=Request)
AnySection = TypeVar("AnySection", bound=TaskConfig)


class Plan(ABC):
    """The calls of one request, and how their outcomes become its response.

    Attributes:
        calls: In any order; each runs by itself.
    """

    calls: Sequence[Call]

    @abstractmethod
    def finish(self, outcomes: Sequence[Outcome]) -> Response[Any]:
        """The response, given one outcome for each call.

        Raises:
            ServingError: no item succeeded; the first one's error.
        """

    def following(self, outcomes: Sequence[Outcome]) -> Plan | None:
        """The plan of calls whose inputs are these outcomes; None: `finish` makes the response.

        It runs on the event loop, and is not asked where a call's version is no more served.

        Raises:
            ServingError: an outcome that they need is an error.
        """
        return None

    def finish_size(self, outcomes: Sequence[Outcome]) -> int:
        """Size of the work in `finish`, which runs in a thread pool unless it is small."""
        return sum(map(size_of, outcomes))

    def streaming(self) -> Streaming:
        """The response as chunks, while the calls run; of tasks that stream."""
        raise NotImplementedError


class ServedTask(ABC, Generic[AnyRequest, AnySection]):
    """One task as the gateway serves it; a file in `inference/tasks` has one, as `TASK`.

    Attributes:
        declaration: Name, messages and documentation, shared with clients.
        section: Model of the task's section in the manifest. A bundle serves the task where its
            manifest has the section.
        is_implied: Whether every bundle that meets all `needs` serves the task, with the section's
            defaults where its manifest has none.
        needs: Conditions that a bundle must meet.
        has_vectors: Whether fields of its response are arrays of float64, not lists.
    """

    declaration: ClassVar[Task]
    section: ClassVar[type[TaskConfig]] = TaskConfig
    is_implied: ClassVar[bool] = False
    needs: ClassVar[tuple[Need, ...]]
    has_vectors: ClassVar[bool] = False

    @property
    def name(self) -> str:
        """Name of the task, e.g. in manifests."""
        return self.declaration.name

    @abstractmethod
    def prepare(
        self, request: AnyRequest, images: Sequence[ImageInput], model: LoadedModel
    ) -> Plan:
        """A request's calls. Runs in a thread pool, unless `size` is small.

        Args:
            request: Validated; its `images` are placeholders.
            images: The images, in the request's order; empty for requests without.
            model: The model that serves it.

        Raises:
            ServingError: the request as a whole is refused, or none of its items is valid.
        """

    @abstractmethod
    def canary(self, model: LoadedModel) -> Iterable[Call]:
        """The smallest calls that exercise every Triton model that the task uses."""

    def stored_name(self, request: AnyRequest) -> str | None:
        """Name of the stored terms that a request refers to."""
        return None

    def with_stored(self, request: AnyRequest, stored: StoredTerms) -> AnyRequest:
        """The request with these terms."""
        raise NotImplementedError

    def split_legs(self, request: AnyRequest) -> tuple[AnyRequest, ...]:
        """The requests that are answered one after the other in place of one, by models each."""
        return (request,)

    def continue_leg(self, leg: AnyRequest, before: Response[Any]) -> AnyRequest:
        """A leg with the texts of the response to the one before.

        Raises:
            ServingError: there are none.
        """
        raise NotImplementedError

    def join_responses(self, first: Response[Any], last: Response[Any]) -> Response[Any]:
        """The response to a request of two legs."""
        raise NotImplementedError

    def accepts(self, request: AnyRequest, model: LoadedModel) -> bool:
        """Whether a model that serves the task can serve this request."""
        return True

    def refusal(self, request: AnyRequest, models: Sequence[LoadedModel]) -> InvalidRequest:
        """The error of a request that none of these models accepts."""
        raise NotImplementedError

    def inputs(self, model: LoadedModel) -> Sequence[str]:
        """Fields of a request that hold texts or images, as far as the model takes them."""
        return self.declaration.item_fields

    def details(self, model: LoadedModel) -> Mapping[str, Any]:
        """Fields of `triptych.messages.Model` that the task fills."""
        return {}

    def most_items(self, request: AnyRequest) -> int | None:
        """Texts or images that such a request may have; None: as many as the gateway's limit."""
        return None

    def limits(self, model: LoadedModel) -> Mapping[str, int]:
        """Fields of `triptych.messages.ModelLimits` that the task fills."""
        return {}

    def header(self, request: AnyRequest, model: LoadedModel) -> str | None:
        """What is drawn above each image of a request; None: nothing.

        Raises:
            InvalidRequest: the model needs a text there.
        """
        return None

    def size(self, request: AnyRequest) -> int | None:
        """Characters that `prepare` works on; None where it decodes images or the like.

        Small work is done on the event loop, so what is repeated counts each time: a query for each
        document, a prompt for each text.
        """
        return None

    def section_of(self, model: LoadedModel) -> AnySection:
        """The model's section of this task."""
        section: AnySection = model.sections[self.name]  # type: ignore[assignment]
        return section


AnyTask: TypeAlias = ServedTask[Any, Any]


def sections_of(manifest: Manifest, tasks: Mapping[str, AnyTask]) -> dict[str, TaskConfig]:
    """The tasks that a bundle serves and their sections: the manifest's, then the implied ones.

    Args:
        tasks: All tasks, by name.

    Raises:
        BundleError: an unknown task, a section that does not fit, or something a task needs is
            missing.
    """
    sections = {
        name: _section(manifest, _find_task(manifest, name, tasks)) for name in manifest.tasks
    }
    implied = {
        task.name: task.section()
        for task in tasks.values()
        if task.is_implied and all(need.is_met(manifest) for need in task.needs)
    }
    return sections | {name: made for name, made in implied.items() if name not in sections}


def _find_task(manifest: Manifest, name: str, tasks: Mapping[str, AnyTask]) -> AnyTask:
    if name not in tasks:
        raise BundleError(
            f"{manifest.name}: unknown task {name!r}; supported are: {', '.join(tasks)}"
        )
    return tasks[name]


def _section(manifest: Manifest, task: AnyTask) -> TaskConfig:
    missing = [need.what for need in task.needs if not need.is_met(manifest)]
    if missing:
        raise BundleError(f"{manifest.name}: {task.name} needs {', '.join(missing)}")
    try:
        return task.section.model_validate(manifest.tasks[task.name])
    except ValidationError as error:
        raise BundleError(f"{manifest.name}: tasks.{task.name}.{one_line(error)}") from error
