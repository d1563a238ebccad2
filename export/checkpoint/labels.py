"""A classifier's labels and activation, from `config.json`: the section of the task `classify`.

Text encoders (`export/text_encoders/heads.py`) read them here too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from export.checkpoint.checkpoint import Checkpoint
from export.config.config_reader import ConfigReader
from inference.errors import CheckpointError

Activation = Literal["softmax", "sigmoid", "none"]
MOST_LABELS = 1_000_000
"""Of names made from a number alone, before any weight is read."""

_PROBLEMS = ("regression", "single_label_classification", "multi_label_classification")


def labels(values: Mapping[str, Any]) -> tuple[str, ...]:
    """The classes in their order; `LABEL_0` … where the checkpoint gives only their number.

    Raises:
        CheckpointError: no classes, or numbers that do not count from 0.
    """
    names = values.get("id2label")
    if names is None:
        count = ConfigReader(values).integer("num_labels", 2)  # the default of `transformers`
        if count > MOST_LABELS:
            raise CheckpointError(
                f"config.json: num_labels = {count} is over {MOST_LABELS} classes without names; "
                "id2label may name more"
            )
        names = {number: f"LABEL_{number}" for number in range(count)}
    if not isinstance(names, Mapping) or not names:
        raise CheckpointError(f"config.json: id2label must name the classes, not {names!r}")
    by_id = {str(number): str(name) for number, name in names.items()}
    if set(by_id) != set(map(str, range(len(by_id)))):
        raise CheckpointError("config.json: id2label must number the classes from 0 without gaps")
    return tuple(by_id[str(number)] for number in range(len(by_id)))


def check_label_counts(values: Mapping[str, Any], place: str = "config.json") -> None:
    """Refuses numbers of classes for which `transformers` would make too many names.

    It makes them whatever it reads `config.json` for, a tokenizer too, and in sections.

    Raises:
        CheckpointError: over `MOST_LABELS`.
    """
    for name, value in values.items():
        if isinstance(value, Mapping):
            check_label_counts(value, f"{place}, {name}")
        elif name == "num_labels" and isinstance(value, int) and value > MOST_LABELS:
            raise CheckpointError(f"{place}: num_labels = {value} is over {MOST_LABELS} classes")


def activation(values: Mapping[str, Any]) -> Activation:
    """What turns logits into scores, as the classification pipelines of `transformers` choose it.

    Raises:
        CheckpointError: a `problem_type` that they do not have.
    """
    problem = values.get("problem_type")
    if problem is not None and problem not in _PROBLEMS:
        raise CheckpointError(
            f"config.json: problem_type = {problem!r} is not supported; supported are: "
            f"{', '.join(_PROBLEMS)}"
        )
    if problem == "regression":
        return "none"
    if problem == "multi_label_classification" or len(labels(values)) == 1:
        return "sigmoid"
    return "softmax"


def classify_section(network: object, checkpoint: Checkpoint) -> dict[str, Any]:
    """The section of an image classifier."""
    return {
        "labels": list(labels(checkpoint.config)),
        "activation": activation(checkpoint.config),
        "pairs": "none",
    }
