"""Fields that a `config.json` leaves out mean what `transformers` takes for them."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from importlib import import_module
from typing import Any

import pytest
from transformers import Qwen2Config

from export.registry import architecture, families
from inference.errors import CheckpointError
from tests.export.twin import EXPORTED
from tests.export.twins import llama, twin_of


def _reference(name: str) -> Any:
    """The configuration class of `transformers`; None for networks that it does not have."""
    module, _, attribute = twin_of(name).reference_of(EXPORTED).partition(":")
    return getattr(getattr(import_module(module), attribute), "config_class", None)


def _read(name: str, values: Mapping[str, Any]) -> str | None:
    """Our configuration as text, functions by their names; None where it is refused."""
    try:
        config = architecture(name).read_config(copy.deepcopy(dict(values)))
    except CheckpointError:
        return None
    return re.sub(r" at 0x[0-9a-f]+", "", repr(config))


def _compare_defaults(name: str, config_class: Any) -> dict[str, bool]:
    """Whether we read a field alike, left out and with the default of `transformers`.

    Fields of any of the twins; those that one of the two needs are left out.
    """
    twin = twin_of(name)
    values = dict(twin.configs[EXPORTED])
    is_alike = {}
    for field in {key for config in twin.configs.values() for key in config}:
        rest = {key: value for key, value in values.items() if key not in {field, "model_type"}}
        try:
            default = getattr(config_class(**copy.deepcopy(rest)), field)
        except Exception:  # whatever `transformers` raises where it needs the field
            continue
        if hasattr(default, "to_dict"):
            default = default.to_dict()
        ours, theirs = _read(name, rest), _read(name, rest | {field: default})
        if ours is not None and theirs is not None:
            is_alike[field] = ours == theirs
    return is_alike


@pytest.mark.parametrize("name", families())
def test_fields_that_are_left_out_have_the_defaults_of_transformers(name: str) -> None:
    config_class = _reference(name)
    is_alike = _compare_defaults(name, config_class) if config_class else {}
    assert [field for field in sorted(is_alike) if not is_alike[field]] == []


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("m2m_100", {"activation_function", "scale_embedding"}),
        ("qwen2", {"max_window_layers", "sliding_window", "rms_norm_eps"}),
        ("bert", {"hidden_act", "layer_norm_eps"}),
        ("t5", {"layer_norm_epsilon", "tie_word_embeddings"}),
    ],
)
def test_defaults_are_compared(name: str, fields: set[str]) -> None:
    assert fields <= _compare_defaults(name, _reference(name)).keys()


@pytest.mark.parametrize("lowest", [0, 2, 3, 28])
def test_qwen2_has_windows_in_its_upper_layers(lowest: int) -> None:
    values = llama.TINY | {
        "num_hidden_layers": 4,
        "use_sliding_window": True,
        "sliding_window": 3,
        "max_window_layers": lowest,
    }
    layers = architecture("qwen2").read_config(values).layers
    kinds = Qwen2Config(**values).layer_types
    assert [heads.window for heads in layers] == [
        3 if kind == "sliding_attention" else None for kind in kinds or ()
    ]
