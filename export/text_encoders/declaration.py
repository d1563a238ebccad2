"""What the declarations of all text encoders share: tasks and sections."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from export.architecture import Architecture, Section
from export.checkpoint.checkpoint import SENTENCE_SETTINGS, Checkpoint
from export.config.weight_names import Names, Rename, WeightLayout
from export.text_encoders.graphs import text_graphs
from export.text_encoders.heads import HeadConfig, HeadKind
from export.text_encoders.network import TextModel
from export.tokenizer.tokenizer import mask_token


def embed_section(model: TextModel, checkpoint: Checkpoint) -> dict[str, Any]:
    """Pooling, length and prompts."""
    settings = checkpoint.json(SENTENCE_SETTINGS)
    prompts, default = settings.get("prompts") or {}, settings.get("default_prompt_name")
    return {
        "is_normalized": model.pooling.is_normalized,
        "pooling": "+".join(model.pooling.modes),
        "prompts": dict(prompts),
        "default_prompt": default if default in prompts else None,
    }


def fill_mask_section(model: TextModel, checkpoint: Checkpoint) -> dict[str, Any]:
    """The mask token and its id."""
    token, index = mask_token(checkpoint)
    return {"mask_token": token, "mask_token_id": index}


def classify_section(model: TextModel, checkpoint: Checkpoint) -> dict[str, Any]:
    """Labels and how logits become scores."""
    pairs = "required" if model.head.relates_sentences else "optional"
    labels, activation = model.head.labels, model.head.activation
    return {"labels": labels, "activation": activation, "pairs": pairs}


def tag_section(model: TextModel, checkpoint: Checkpoint) -> dict[str, Any]:
    """The tags."""
    return {"labels": model.head.labels}


def rerank_section(model: TextModel, checkpoint: Checkpoint) -> dict[str, Any]:
    """How a logit becomes a relevance score."""
    return {"activation": model.head.rerank_activation}


TASKS: dict[str, Section] = {
    "embed": embed_section,
    "fill-mask": fill_mask_section,
    "classify": classify_section,
    "tag": tag_section,
    "rerank": rerank_section,
}


def masked_names(head: HeadConfig, prefix: str, *, dense: str, norm: str) -> Names:
    """The table of a masked-word head, whose tensors are skipped where another head is exported.

    Its bias has two names. An untied head of `transformers` 5 has both and uses `decoder.bias`; of
    tied and of older ones, one name is in the file.
    """
    used = head.fills_masks
    return {
        f"{prefix}.{dense}": "masked.dense" if used else None,
        f"{prefix}.{norm}": "masked.norm" if used else None,
        f"{prefix}.decoder": "masked.output" if used else None,
        f"{prefix}.bias": WeightLayout(("masked.output.bias",), is_spare=True) if used else None,
    }


def class_names(head: HeadConfig, output: str = "classifier", dense: str | None = None) -> Names:
    """The table of a head for classes of texts or of tokens, if that is the head.

    Args:
        output: The checkpoint's name of a text classifier's last layer; a tagger's is `classifier`.
        dense: Its name of the hidden layer.
    """
    if head.kind is HeadKind.TOKENS:
        return {"classifier": "tagger"}
    if head.kind is not HeadKind.SEQUENCE:
        return {}
    hidden: Names = {} if dense is None else {dense: "classifier.dense"}
    return {**hidden, output: "classifier.output"}


def text_architecture(
    name: str,
    read_config: Callable[[Mapping[str, Any]], Any],
    build: Callable[[Any], TextModel],
    rename: Callable[[Any], Rename],
) -> Architecture:
    """The declaration of a text encoder: its tasks follow from `config.head`."""
    return Architecture(
        name=name,
        tasks=TASKS,
        read_config=read_config,
        build=build,
        rename=rename,
        graphs=text_graphs,
        tasks_of=lambda config: config.head.tasks,
    )
