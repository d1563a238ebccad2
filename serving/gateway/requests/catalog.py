"""The served models, and the choice of the one that answers a request."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from inference.bundle.repository import Repository
from inference.errors import BundleError, InvalidRequest, UnknownModel
from inference.tasks import TASKS
from inference.tasks.shared.loaded_model import LoadedModel, TaskLimits
from inference.tasks.shared.served_task import AnyTask
from serving.load_model import load_model
from serving.triton.served import Record
from triptych.messages import Model, ModelLimits, ModelList, RefusedModel, Request, TaskInputs

log = logging.getLogger(__name__)


class Catalog:
    """The served models by name, each at one version. Used on one event loop.

    Args:
        models: Those that are served at first.
        limits: Of one request.
    """

    def __init__(
        self, models: Iterable[LoadedModel] = (), limits: TaskLimits | None = None
    ) -> None:
        self._limits = limits or TaskLimits()
        self._models: dict[str, LoadedModel] = {}
        self._published: dict[str, tuple[int, ...]] = {}
        self.record = Record()
        """The supervisor's, of versions that do not load."""
        for model in models:
            self.put(model)

    def put(self, model: LoadedModel, published: Iterable[int] = ()) -> None:
        """Serve a model, in place of another version of it if there is one.

        Args:
            model: The version that answers from now on.
            published: The complete versions in the repository, newest first.
        """
        self._models[model.name] = replace(model, task_limits=self._limits)
        self._published[model.name] = tuple(published) or (model.manifest.version,)

    def remove(self, name: str) -> None:
        """Serve a model no more."""
        del self._models[name], self._published[name]

    def version(self, name: str) -> int | None:
        """The version of a model that is served, if any is."""
        model = self._models.get(name)
        return model.manifest.version if model else None

    @property
    def models(self) -> tuple[LoadedModel, ...]:
        """All of them, by name."""
        return tuple(self._models.values())

    @property
    def names(self) -> tuple[str, ...]:
        """Their names."""
        return tuple(self._models)

    def resolve(self, task: AnyTask, request: Request) -> LoadedModel:
        """The model that serves a request: the one it names, the only one that fits, the default.

        Without a default, a request without images goes to the only model that reads none.

        Raises:
            UnknownModel: no model of that name, or none for the task.
            InvalidRequest: the model does not accept the request, or several do.
        """
        if request.model is not None:
            return self._find_fitting(request.model, task, request)
        able = [model for model in self.models if task.name in model.sections]
        if not able:
            raise UnknownModel(f"no model is served for {task.name}: export one")
        fitting = [model for model in able if task.accepts(request, model)]
        if not fitting:
            raise task.refusal(request, able)
        if len(fitting) == 1:
            return fitting[0]
        readers = [model for model in fitting if "images" in task.inputs(model)]
        if getattr(request, "images", None):
            fitting = readers or fitting
        defaults = [model for model in fitting if model.manifest.default]
        others = [model for model in fitting if model not in readers]
        for found in (fitting, defaults, others):
            if len(found) == 1:
                return found[0]
        names = ", ".join(model.name for model in fitting)
        raise InvalidRequest(f"several models fit, give model: one of {names}", field="model")

    def find(self, name: str) -> LoadedModel:
        """The model of that name.

        Raises:
            UnknownModel: there is none.
        """
        model = self._models.get(name)
        if model is None:
            names = ", ".join(self.names) or "none"
            raise UnknownModel(f"no such model; served are: {names}", field="model")
        return model

    def _find_fitting(self, name: str, task: AnyTask, request: Request) -> LoadedModel:
        model = self.find(name)
        if task.name not in model.sections:
            tasks = ", ".join(model.sections)
            raise InvalidRequest(f"{name} is for {tasks}, not for {task.name}", field="model")
        if not task.accepts(request, model):
            raise task.refusal(request, [model])
        return model

    @property
    def problem(self) -> str | None:
        """The first reason for which a model is not served; None: there is none."""
        return next((each.reason for each in self.record.refused.values()), None)

    def listing(self) -> ModelList:
        """`GET /v1/models`."""
        refused = [
            RefusedModel(id=name, version=each.version, reason=each.reason)
            for name, each in self.record.refused.items()
        ]
        return ModelList(data=[self.entry(model) for model in self.models], refused=refused)

    def entry(self, model: LoadedModel) -> Model:
        """One model of the listing."""
        manifest, most = model.manifest, model.task_limits
        tasks = [TASKS[name] for name in model.sections]
        limits: dict[str, int] = {}
        details: dict[str, Any] = {}
        for task in tasks:
            limits |= task.limits(model)
            details |= task.details(model)
        return Model(
            id=manifest.name,
            version=manifest.version,
            versions=list(self._published[model.name]),
            architecture=manifest.architecture,
            tasks=list(model.sections),
            inputs=[TaskInputs(task=task.name, fields=list(task.inputs(model))) for task in tasks],
            precision=manifest.precision,
            default=manifest.default,
            limits=ModelLimits(
                max_input_tokens=model.text_limit,
                max_total_tokens=manifest.limits.max_total_tokens,
                max_client_batch_size=most.max_client_batch_size,
                max_image_pixels=most.image.max_pixels if manifest.image else None,
                **limits,
            ),
            **details,
        )


def load_catalog(repository: Repository, limits: TaskLimits | None = None) -> Catalog:
    """The newest complete version of every bundle; what cannot be read is skipped with one line.

    This is what the gateway expects to serve; `VersionFollower` replaces the versions by those that
    Triton serves.
    """
    catalog = Catalog(limits=limits)
    for name in repository.names():
        complete = repository.complete(name)
        published = [bundle.version for bundle in complete]
        try:
            for bundle in complete[:1]:
                catalog.put(load_model(bundle), published)
        except BundleError as error:
            log.warning("skipped %s: %s", name, error)
    if not catalog.names:
        problem = repository.problem or "run `triptych export`"
        log.warning("%s has no complete bundle yet: %s", repository.root, problem)
    return catalog
