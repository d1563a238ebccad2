"""Which models there are, and which of them answers a request."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from serving.bundle import bundles
from serving.errors import BundleError, InvalidRequest, SetupError, UnknownModel
from serving.loading import load_model
from serving.planning.loaded_model import LoadedModel
from serving.planning.served_task import AnyTask
from serving.settings import GatewaySettings
from serving.tasks import TASKS
from triptych.messages import Model, ModelLimits, ModelList, Request

log = logging.getLogger(__name__)


class Catalog:
    """The served models by name. Read-only once made."""

    def __init__(self, models: Iterable[LoadedModel]) -> None:
        self._models = {model.name: model for model in models}

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

        Raises:
            UnknownModel: no model of that name, or none for the task.
            InvalidRequest: the model does not accept the request, or several do.
        """
        if request.model is not None:
            return self._named(request.model, task, request)
        able = [model for model in self.models if task.name in model.sections]
        if not able:
            raise UnknownModel(f"no model is served for {task.name}: export one")
        fitting = [model for model in able if task.accepts(request, model)]
        if not fitting:
            raise task.refusal(request, able)
        defaults = [model for model in fitting if model.manifest.default]
        if len(fitting) == 1 or len(defaults) == 1:
            return fitting[0] if len(fitting) == 1 else defaults[0]
        names = ", ".join(model.name for model in fitting)
        raise InvalidRequest(f"several models fit, give model: one of {names}", field="model")

    def _named(self, name: str, task: AnyTask, request: Request) -> LoadedModel:
        model = self._models.get(name)
        if model is None:
            names = ", ".join(self.names) or "none"
            raise UnknownModel(f"no such model; served are: {names}", field="model")
        if task.name not in model.sections:
            tasks = ", ".join(model.sections)
            raise InvalidRequest(f"{name} is for {tasks}, not for {task.name}", field="model")
        if not task.accepts(request, model):
            raise task.refusal(request, [model])
        return model

    def listing(self, settings: GatewaySettings) -> ModelList:
        """`GET /v1/models`."""
        return ModelList(data=[_line(model, settings) for model in self.models])


def load_catalog(repository: Path) -> Catalog:
    """Every complete bundle of a repository; a damaged one is skipped with one line.

    Raises:
        SetupError: there is none.
    """
    models = []
    for bundle in bundles(repository):
        try:
            models.append(load_model(bundle))
        except BundleError as error:
            log.warning("skipped %s: %s", bundle.manifest.name, error)
    if not models:
        raise SetupError(f"{repository} has no complete bundle: run `triptych export`")
    return Catalog(models)


def _line(model: LoadedModel, settings: GatewaySettings) -> Model:
    manifest = model.manifest
    own = manifest.limits.max_input_tokens
    tasks = [TASKS[name] for name in model.sections]
    limits: dict[str, int] = {}
    details: dict[str, Any] = {}
    for task in tasks:
        limits |= task.limits(settings.task_limits)
        details |= task.details(model)
    return Model(
        id=manifest.name,
        version=manifest.version,
        architecture=manifest.architecture,
        tasks=list(model.sections),
        precision=manifest.precision,
        default=manifest.default,
        limits=ModelLimits(
            max_input_tokens=min(own or settings.max_input_tokens, settings.max_input_tokens),
            max_total_tokens=manifest.limits.max_total_tokens,
            max_client_batch_size=settings.max_client_batch_size,
            max_image_pixels=settings.max_image_pixels if manifest.image else None,
            **limits,
        ),
        **details,
    )
