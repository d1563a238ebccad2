"""`tie_word_embeddings` at two places of a `config.json`: ours follows the one `transformers` does.

Networks of two halves have the field at the top and in the section of their language model, and
files hold the table of scores or leave it out.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from export.checkpoint.checkpoint import CONFIG, open_checkpoint
from export.graphs.source_model import SourceModel
from inference.errors import CheckpointError
from tests.export.twins import every_config, generators, make_twin, twin_of

FIELD = "tie_word_embeddings"
_SECTIONS = ("text_config", "decoder")
_SCORES = (
    *("lm_head.weight", "lm_head.decoder.weight"),
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
