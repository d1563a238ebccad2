"""Every field of `transformers`' configurations, changed: ours follows the change or refuses it."""

from __future__ import annotations

import copy
import traceback
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from export.registry import architecture, families
from inference.errors import CheckpointError
from tests.export.conftest import pair_of
from tests.export.oracle import compare, difference
from tests.export.twin import EXPORTED
from tests.export.twins import make_twin, twin_of

TOLERANCE = 1e-4
"""Above the rounding of badly conditioned networks (soft caps of 0.5), below an ignored field."""
_UNCHANGED = {
    *("architectures", "model_type", "transformers_version", "dtype", "id2label", "label2id"),
    "return_dict",  # the form of what `transformers` returns
    # what the random inputs of the tests depend on
    *("vocab_size", "max_position_embeddings", "n_positions", "num_labels"),
}
_DECLARED = {("m2m_100", "pad_token_id")}
"""Changes that the network's file declares as a difference from `transformers`."""
_ACTIVATIONS = ("gelu", "relu", "silu", "gelu_new", "tanh", "mish")
_TEXTS = (None, "none", "first", "mean", "relative_key", "layer_norm", "gated-gelu", "gated-silu")


def _fields(name: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Path and value of each field of the exported twin, those of sections included."""
    twin = twin_of(name)
    module, _, attribute = twin.reference_of(EXPORTED).partition(":")
    values = {k: v for k, v in twin.configs[EXPORTED].items() if k != "model_type"}
    config = getattr(import_module(module), attribute).config_class(**copy.deepcopy(values))
    sections: list[tuple[tuple[str, ...], Any]] = [((), config)]
    for path, section in sections:
        for field, value in vars(section).items():
            if hasattr(value, "to_dict"):
                sections.append(((*path, field), value))
            elif field not in _UNCHANGED and not field.startswith("_"):
                yield (*path, field), value


def _others(value: Any) -> list[Any]:
    """Values of the same kind as a field's own."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        others: list[Any] = [value + 1, value * 2, value // 2, 0, 1, 3, -1]
    elif isinstance(value, float):
        others = [value * 2 + 0.1, 0.0, 0.5]
    elif isinstance(value, str):
        others = [*_ACTIVATIONS, *_TEXTS]
    elif isinstance(value, list | tuple):
        others = [list(reversed(value)), list(value)[:-1]]
    else:
        others = [True, 1, 2, 0.3] if value is None else []
    return [other for other in others if other != value]


def _changed(name: str, path: tuple[str, ...], value: Any) -> dict[str, Any]:
    """The exported twin's fields with another value at a path."""
    values: dict[str, Any] = copy.deepcopy(dict(twin_of(name).configs[EXPORTED]))
    section = values
    for key in path[:-1]:
        section = section.setdefault(key, {})
    section[path[-1]] = value
    return values


def _is_raised_by_transformers(error: Exception) -> bool:
    frames = traceback.extract_tb(error.__traceback__)
    return any("transformers" in Path(frame.filename).parts for frame in frames)


def _worst(name: str, changes: Mapping[str, Any], folder: Path) -> float | None:
    """The largest difference from the reference; None where either of the two refuses."""
    folder.mkdir()
    try:
        reference = make_twin(name, EXPORTED, folder, changes)
    except Exception:  # whatever `transformers` raises for a configuration that it cannot build
        return None
    try:
        pair = pair_of(name, EXPORTED, folder, reference)
        return max(difference(want, got) for _, want, got in compare(pair))
    except CheckpointError:
        return None
    except Exception as error:
        if _is_raised_by_transformers(error):
            return None
        raise


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("t5", {"relative_attention_num_buckets": 3}, "relative_attention_num_buckets = 3"),
    ("t5", {"relative_attention_max_distance": 4}, "relative_attention_max_distance = 4"),
    ("gemma2", {"query_pre_attn_scalar": -1}, "query_pre_attn_scalar must be positive"),
    ("gemma2", {"final_logit_softcapping": 0.0}, "final_logit_softcapping must be positive"),
    ("deberta-v2", {"position_buckets": 1}, "position_buckets must be at least 2"),
    ("xlnet", {"d_model": 15, "n_head": 3, "d_head": 5}, "d_model = 15"),
    ("vit", {"image_size": 3}, "an image of 3 x 3 holds no patch"),
    ("gpt_neo", {"attention_layers": ["local"]}, "attention_layers"),
]
"""Values that would divide by zero, or take a root of less."""


@pytest.mark.parametrize(("name", "change", "reason"), REFUSED)
def test_values_without_a_meaning_are_refused(
    name: str, change: dict[str, Any], reason: str
) -> None:
    declared = architecture(name)
    with pytest.raises(CheckpointError, match=reason):
        declared.build(declared.read_config({**twin_of(name).configs[EXPORTED], **change}))


FOLLOWED: list[tuple[str, dict[str, Any]]] = [
    ("t5", {"dense_act_fn": "tanh"}),
    ("gpt_neo", {"attention_layers": ["local", "global"]}),
    ("deberta-v2", {"relative_attention": False}),
]
"""Fields that override another one, or make weights of the file unused."""


@pytest.mark.parametrize(("name", "change"), FOLLOWED)
def test_values_that_override_others_are_followed(
    name: str, change: dict[str, Any], tmp_path: Path
) -> None:
    changes = {**twin_of(name).configs[EXPORTED], **change}
    worst = _worst(name, changes, tmp_path / "twin")
    assert worst < TOLERANCE


@pytest.mark.full
@pytest.mark.parametrize("name", [name for name in families() if twin_of(name).is_transformers])
def test_no_field_is_ignored(name: str, tmp_path: Path) -> None:
    wrong, compared = [], 0
    for number, (path, value) in enumerate(_fields(name)):
        if (name, path[-1]) in _DECLARED:
            continue
        for turn, other in enumerate(_others(value)):
            worst = _worst(name, _changed(name, path, other), tmp_path / f"{number}-{turn}")
            compared += worst is not None
            if worst is not None and not worst < TOLERANCE:
                wrong.append(f"{'.'.join(path)} = {other!r}: {worst:.1e}")
    assert compared > 15  # LeViT, with the fewest fields, has 18
    assert wrong == []
