"""Every field of `transformers`' configurations, absent and changed.

Networks of two halves have the field at the top and in the section of their language model, and
files hold the table of scores or leave it out.
"""

from __future__ import annotations

import copy
import json
import re
import traceback
from collections.abc import Iterator, Mapping
from importlib import import_module
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import Qwen2Config

from export.checkpoint.checkpoint import CONFIG, open_checkpoint
from export.graphs.source_model import SourceModel
from export.registry import architecture, families
from inference.errors import CheckpointError
from tests.export.conftest import pair_of
from tests.export.oracle import compare, difference
from tests.export.twin import EXPORTED
from tests.export.twins import every_config, generators, interface, llama, make_twin, twin_of

TOLERANCE = 1e-4
"""Above the rounding of badly conditioned networks (soft caps of 0.5), below an ignored field."""
_UNCHANGED = {
    *("architectures", "model_type", "transformers_version", "dtype", "id2label", "label2id"),
    "return_dict",  # the form of what `transformers` returns
    # what the random inputs of the tests depend on
    *("vocab_size", "max_position_embeddings", "n_positions", "num_labels"),
    *("src_vocab_size", "tgt_vocab_size"),
}
_DECLARED = {(name, "pad_token_id") for name in ("m2m_100", "seamless_m4t", "fsmt")}
_DECLARED |= {("t5gemma", "pad_token_id"), ("switch_transformers", "expert_capacity")}
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
    ("granite", {"attention_multiplier": 0.0}, "attention_multiplier must be positive"),
    ("granite", {"logits_scaling": 0.0}, "logits_scaling must be positive"),
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


FIELD = "tie_word_embeddings"
_SECTIONS = ("text_config", "decoder")
_SCORES = (
    *("lm_head.weight", "lm_head.decoder.weight", "lm_head.out_proj.weight"),
    *("output_projection.weight", "predictions.decoder.weight"),
)
"""Ends of the names of tables of scores."""
_REASONS = "missing: .*|contradicting: |tie_word_embeddings = False is not supported"
_ONE_TABLE = "florence2"
"""Refused where the section says that both sides of its language model have tables of their own."""
_FLAGS = (None, False, True)
"""None: the field is left out."""


def _halves() -> Iterator[tuple[str, str, str]]:
    """(architecture, configuration, section) of one twin for each kind of language model."""
    seen = set()
    composed = generators(is_transformers=True, has_source=None)
    for name, config in every_config():
        values = twin_of(name).configs[config]
        section = next((each for each in _SECTIONS if each in values), None)
        if name not in composed or section is None:
            continue
        if "step" not in interface(name, config).lowerings:  # another head's
            continue
        kind = (
            name,
            twin_of(name).reference_of(config),
            values[section].get("model_type"),
        )
        if kind not in seen:
            seen.add(kind)
            yield name, config, section


def _with_flags(
    values: Mapping[str, Any], section: str, top: bool | None, inner: bool | None
) -> dict[str, Any]:
    changed = copy.deepcopy(dict(values))
    for fields, flag in ((changed, top), (changed[section], inner)):
        fields.pop(FIELD, None)
        if flag is not None:
            fields[FIELD] = flag
    return changed


def _theirs(model_class: Any, folder: Path) -> Tensor | None:
    """The table of scores that `transformers` loads; None where it draws parameters."""
    model, loading = model_class.from_pretrained(folder, output_loading_info=True)
    tensors = dict(model.named_parameters(remove_duplicate=False))
    table = next(tensor for name, tensor in tensors.items() if name.endswith(_SCORES))
    return None if loading["missing_keys"] else table


def _ours(folder: Path) -> Tensor | None:
    """The table of scores that we load; None where the folder is refused."""
    network: Any
    try:
        network = SourceModel(open_checkpoint(str(folder))).network
    except CheckpointError as error:
        if not re.search(_REASONS, error.message):
            raise
        return None
    table: Tensor = network.decoder.output
    return table


def _is_equal(want: Tensor | None, got: Tensor | None) -> bool:
    if want is None or got is None:
        return want is got
    return torch.equal(want, got)


@pytest.mark.parametrize(("name", "config", "section"), list(_halves()))
def test_tables_are_one_where_transformers_ties_them(
    name: str, config: str, section: str, tmp_path: Path
) -> None:
    """Where tied ones differ, which `transformers` then leaves apart, they may be refused."""
    values = twin_of(name).configs[config]
    tied, apart = tmp_path / "tied", tmp_path / "apart"
    for folder, flag in ((tied, True), (apart, False)):
        folder.mkdir()
        fields = _with_flags(values, section, flag, flag or name == _ONE_TABLE)
        model = make_twin(name, config, folder, fields)
    wrong, read = [], 0
    for top, inner in product(_FLAGS, _FLAGS):
        is_tied = None
        for folder in (tied, apart):
            saved = json.loads((folder / CONFIG).read_text())
            fields = _with_flags(saved, section, top, inner)
            (folder / CONFIG).write_text(json.dumps(fields))
            want, got = _theirs(type(model), folder), _ours(folder)
            is_tied = want is not None if is_tied is None else is_tied
            read += got is not None
            is_refused = (folder is apart and is_tied) or (name == _ONE_TABLE and inner is False)
            if not (_is_equal(want, got) or (is_refused and got is None)):
                wrong.append(f"{folder.name} {top} {inner}: {want is not None} {got is not None}")
    assert wrong == []
    assert read >= 9
