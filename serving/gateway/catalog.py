"""Which models there are, and which of them answers a request."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path

from serving.bundle import bundles
from serving.errors import BundleError, InvalidRequest, SetupError, UnknownModel
from serving.settings import GatewaySettings
from serving.tasks.model import LoadedModel, load_model
from triptych.messages import Model, ModelLimits, ModelList
from triptych.tasks.zero_shot import MAX_LABELS

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

    def resolve(
        self, task: str, name: str | None, source: str | None = None, target: str | None = None
    ) -> LoadedModel:
        """The model that answers: the one named, else the only one that fits, else the default.

        Args:
            task: What is asked for, e.g. `translate`.
            name: As asked.
            source: ISO 639-1, where asked.
            target: ISO 639-1, where asked.

        Raises:
            UnknownModel: no model of that name, or none for the task.
            InvalidRequest: it cannot do what is asked, or several could.
        """
        if name is not None:
            return self._named(name, task, source, target)
        able = [model for model in self.models if task in model.manifest.tasks]
        if not able:
            raise UnknownModel(f"no model is served for {task}: export one")
        fitting = [model for model in able if _speaks(model, source, target)]
        if not fitting:
            pairs = sorted({f"{a}-{b}" for model in able for a, b in model.languages})
            raise InvalidRequest(
                f"no model translates between those languages; supported are: {', '.join(pairs)}",
                field="target" if target is not None else "source",
            )
        defaults = [model for model in fitting if model.manifest.default]
        if len(fitting) == 1 or len(defaults) == 1:
            return fitting[0] if len(fitting) == 1 else defaults[0]
        names = ", ".join(model.name for model in fitting)
        raise InvalidRequest(f"several models fit, give model: one of {names}", field="model")

    def _named(self, name: str, task: str, source: str | None, target: str | None) -> LoadedModel:
        model = self._models.get(name)
        if model is None:
            names = ", ".join(self.names) or "none"
            raise UnknownModel(f"no such model; served are: {names}", field="model")
        if task not in model.manifest.tasks:
            tasks = ", ".join(model.manifest.tasks)
            raise InvalidRequest(f"{name} is for {tasks}, not for {task}", field="model")
        if not _speaks(model, source, target):
            pairs = ", ".join(f"{a}-{b}" for a, b in model.languages)
            field = "target" if target is not None else "source"
            raise InvalidRequest(f"{name} translates {pairs} only", field=field)
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


def _speaks(model: LoadedModel, source: str | None, target: str | None) -> bool:
    """Whether it translates that pair; a model that names no languages is taken at its word."""
    pairs = model.languages
    if not pairs:
        return True
    return any(source in (None, a) and target in (None, b) for a, b in pairs)


def _line(model: LoadedModel, settings: GatewaySettings) -> Model:
    manifest = model.manifest
    own = manifest.limits.max_input_tokens
    generates = "generate" in manifest.tasks
    return Model(
        id=manifest.name,
        version=manifest.version,
        architecture=manifest.architecture,
        tasks=list(manifest.tasks),
        languages=[list(pair) for pair in model.languages],
        precision=manifest.precision,
        default=manifest.default,
        limits=ModelLimits(
            max_input_tokens=min(own or settings.max_input_tokens, settings.max_input_tokens),
            max_total_tokens=manifest.limits.max_total_tokens,
            max_client_batch_size=settings.max_client_batch_size,
            max_image_pixels=settings.max_image_pixels if manifest.image else None,
            max_labels=MAX_LABELS if "zero-shot" in manifest.tasks else None,
            max_stop_sequences=settings.max_stop_sequences if generates else None,
            max_best_of=settings.max_best_of if generates else None,
        ),
    )
