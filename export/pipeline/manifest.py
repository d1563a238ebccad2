"""The manifest of a bundle, put together from a checkpoint and its network."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from export.architecture import Architecture, Graphs
from export.checkpoint.checkpoint import Checkpoint
from export.checkpoint.generation_defaults import generation_defaults
from export.graphs.source_model import SourceModel
from export.pipeline.token_rows import check_texts, usable_padding, usable_rules
from export.precision import Device, Precision, Runtime
from export.quantization.calibration_set import samples_hash
from export.registry import module_of
from export.source_hash import source_hash
from export.text_encoders.sentence_transformers import limits as sentence_limits
from inference.bundle.inputs import PromptImages
from inference.bundle.manifest import Limits, Manifest, SourceInfo
from inference.errors import CheckpointError
from inference.tasks import TASKS
from inference.tasks.shared.served_task import sections_of

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]*")
_LICENCE = re.compile(r"^license:\s*(\S+)\s*$", re.MULTILINE)


@dataclass(frozen=True)
class Request:
    """The options of one export."""

    name: str
    task: str | None = None
    is_default: bool = False
    precision: Precision = Precision.FP32
    has_attention: bool = False
    """Whether attention pictures are a further part."""
    runtime: Runtime = Runtime.ONNXRUNTIME
    device: Device = Device.CPU
    pooling: str | None = None
    calibration: tuple[Path, ...] = ()
    """Files and folders with the user's samples."""
    memory_limit_bytes: int | None = None
    """Memory that the export may need; by default any."""
    max_pixels: int | None = None
    """Of pictures that keep their size."""


def bundle_name(wanted: str | None, checkpoint: Checkpoint) -> str:
    """The bundle's name: the wanted one, else the checkpoint's.

    Raises:
        CheckpointError: Triton could not use it as a folder and in a URL.
    """
    name = wanted or checkpoint.name.lower()
    if not _NAME.fullmatch(name):
        raise CheckpointError(
            f"{name!r} cannot be a model's name: use a-z, 0-9, '.', '_' and '-' (--name)"
        )
    return name


def tasks(declared: Architecture, config: Any, wanted: str | None) -> tuple[str, ...]:
    """The bundle's tasks, the wanted one first.

    Args:
        config: The checkpoint's, as `read_config` returned it.

    Raises:
        CheckpointError: the checkpoint cannot be served for it.
    """
    select = declared.tasks_of
    served = tuple(declared.tasks) if select is None else tuple(select(config))
    if wanted is None:
        return served
    if wanted not in served:
        raise CheckpointError(
            f"{declared.name} cannot serve {wanted!r} from this checkpoint, "
            f"only {', '.join(served)}"
        )
    return (wanted, *(task for task in served if task != wanted))


def content_hash(checkpoint: Checkpoint, request: Request) -> str:
    """SHA-256 over the checkpoint's files, the options, and the code that exports it."""
    digest = hashlib.sha256(checkpoint.content_hash.encode())
    options: list[object] = [request.name, request.task, request.is_default]
    options += [request.precision, request.runtime]
    options += [] if request.device is Device.CPU else [request.device]
    options += ["attention"] * request.has_attention
    options += [] if request.pooling is None else [request.pooling]
    options += [] if request.max_pixels is None else [request.max_pixels]
    options += [samples_hash(request.calibration)] if request.calibration else []
    digest.update(json.dumps(options).encode())
    digest.update(source_hash(module_of(checkpoint.config.get("model_type"))).encode())
    return digest.hexdigest()


def build_manifest(
    request: Request, version: int, model: SourceModel, graphs: Graphs
) -> tuple[Manifest, list[str]]:
    """The manifest, and one line for each setting of the checkpoint that serving does not support.

    Raises:
        BundleError: a task lacks something: a section's field, a graph with certain roles.
        CheckpointError: an image fills the positions of the model, or it has no row of a token
            that texts or answers need.
    """
    checkpoint, declared, network = model.checkpoint, model.architecture, model.network
    limits = sentence_limits(checkpoint, model.configuration.limits)
    fields: dict[str, Any] = {**declared.details(network), **graphs.fields}
    _check_image_tokens(fields.get("images"), limits)
    fields["source_vocabulary_size"] = graphs.source_vocabulary
    warnings = checkpoint.notes()
    if "step" in graphs.lowerings:
        own = declared.generation
        fields["generation"], unsupported = generation_defaults(
            checkpoint,
            limits,
            has_source="admit" in graphs.lowerings and "images" not in fields,
            values=None if own is None else own(checkpoint),
        )
        generator: Any = network
        size = fields["vocabulary_size"] = int(generator.decoder.vocabulary_size)
        fields["generation"], lines = usable_rules(fields["generation"], size, checkpoint.folder)
        warnings += [*unsupported, *lines]
    manifest = Manifest(
        name=request.name,
        version=version,
        architecture=declared.name,
        source=SourceInfo(
            name=checkpoint.name,
            revision=checkpoint.revision,
            content_hash=content_hash(checkpoint, request),
            location=checkpoint.location,
            checkpoint_hash=checkpoint.content_hash,
        ),
        licence=_licence(checkpoint),
        precision=request.precision.value,
        runtime=request.runtime.in_manifest,
        device=request.device.value,
        tasks=_sections(model, request.task),
        default=request.is_default,
        parts={part: request.name + suffix for part, suffix in graphs.parts.items()},
        graphs={key: lowering.graph for key, lowering in graphs.lowerings.items()},
        states=graphs.states,
        limits=limits,
        tokenizer=model.preprocessing.tokenizer,
        image=model.preprocessing.image,
        **fields,
    )
    sections_of(manifest, TASKS)  # raises what `load_model` would raise in the gateway
    if manifest.tokenizer is not None:
        spec = usable_padding(manifest, manifest.tokenizer, checkpoint.folder)
        manifest = manifest.model_copy(update={"tokenizer": spec})
        warnings += check_texts(manifest, model.preprocessing.files, checkpoint.folder)
    return manifest, warnings


def _check_image_tokens(images: PromptImages | None, limits: Limits) -> None:
    """Refuse images of one size that leave no position for a prompt's text and its answer.

    Raises:
        CheckpointError: see above.
    """
    positions = limits.max_total_tokens
    if images is None or images.grid is not None or positions is None:
        return
    if images.tokens >= positions:
        raise CheckpointError(
            f"config.json: an image takes {images.tokens} tokens of a prompt, "
            f"and the model reads {positions} in all"
        )


def _sections(model: SourceModel, wanted: str | None) -> dict[str, dict[str, Any]]:
    """The sections of the tasks that the checkpoint is served for, the wanted one first.

    Raises:
        CheckpointError: the checkpoint lacks what the wanted task needs.
    """
    declared, checkpoint = model.architecture, model.checkpoint
    names = tasks(declared, model.configuration, wanted)
    made = {name: declared.tasks[name](model.network, checkpoint) for name in names}
    if wanted is not None and made[wanted] is None:
        raise CheckpointError(f"{checkpoint.folder} lacks what {wanted!r} needs")
    return {name: dict(section) for name, section in made.items() if section is not None}


def _licence(checkpoint: Checkpoint) -> str | None:
    """From the model card's front matter."""
    card = checkpoint.folder / "README.md"
    if not card.is_file():
        return None
    found = _LICENCE.search(card.read_text(encoding="utf-8", errors="replace"))
    return found[1] if found else None
