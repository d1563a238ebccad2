"""What is said to be exported is: configurations are accepted, shapes give published sizes."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import pytest
import torch
import typer
from transformers.models.auto.modeling_auto import MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES
from typer.testing import CliRunner

from export.catalog import command, entries
from export.catalog.entries import Entry, Listed, entry, read_catalog
from export.models.encoder_decoders.transformer import Transformer, read_config
from export.pipeline.manifest import tasks
from export.registry import ARCHITECTURES, REFUSED, architecture, families
from inference.errors import CheckpointError

LISTED = {checkpoint.name: checkpoint for checkpoint in read_catalog()}
FIRST = {checkpoint.config["model_type"]: name for name, checkpoint in reversed(LISTED.items())}
EVERY = [
    pytest.param(name, marks=() if name in FIRST.values() else pytest.mark.full) for name in LISTED
]
"""Of a family's checkpoints the first is for `make test`."""
NOT_EXPORTED = {"xlnet/xlnet-base-cased"}  # its head permutes, only its content stream is exported
EMBEDDING = {"BAAI/bge-base-en-v1.5", "sentence-transformers/all-MiniLM-L6-v2"}
DROPPED = 0.06
"""Largest share of parameters that an export leaves out: poolers without a task, stored masks."""
UNREAD = {"CIDAS/clipseg-rd64-refined": 2 * 7_087_872}
"""Parameters of blocks whose outputs nothing reads: the tower's eleventh and twelfth."""

app = typer.Typer()
app.command()(command.catalog)


@cache
def computed(name: str) -> Entry:
    """An entry; that of a large network takes long."""
    return entry(LISTED[name])


@pytest.fixture
def _computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of most families the table has the first checkpoint, which other tests compute as well."""
    names = {*FIRST.values(), *EMBEDDING}
    monkeypatch.setattr(entries, "read_catalog", lambda: [LISTED[name] for name in names])
    monkeypatch.setattr(entries, "entry", lambda checkpoint: computed(checkpoint.name))


def _run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, arguments, env={"COLUMNS": "220"})
    return result.exit_code, result.output


def test_every_name_is_listed_once_with_a_revision_and_a_licence() -> None:
    assert len(LISTED) == len(read_catalog()) >= 60
    for checkpoint in LISTED.values():
        assert re.fullmatch(r"main|[0-9a-f]{40}", checkpoint.revision), checkpoint.name
        assert checkpoint.licence
        assert checkpoint.config["architectures"]


@pytest.mark.parametrize("name", EVERY)
def test_configuration_of_a_supported_family_is_accepted(name: str) -> None:
    checkpoint = LISTED[name]
    is_registered = checkpoint.config["model_type"] in ARCHITECTURES
    if not is_registered or name in NOT_EXPORTED:
        assert not computed(name).is_exportable
        return
    found = computed(name)
    assert found.is_exportable, found.reason
    assert checkpoint.task in found.tasks
    declared = architecture(checkpoint.config["model_type"])
    assert found.tasks == tasks(declared, declared.read_config(checkpoint.config), None)


@pytest.mark.parametrize("name", EVERY)
def test_parameters_of_the_network_are_those_of_the_checkpoint(name: str) -> None:
    found = computed(name)
    read = LISTED[name].parameters - UNREAD.get(name, 0)
    assert found.parameters == pytest.approx(read, rel=DROPPED)
    # tied and shared tables may count once a graph, never more
    assert 4 * found.parameters * 0.9 <= found.memory_bytes["fp32"] <= 8 * found.parameters
    assert found.memory_bytes["int8"] < 0.5 * found.memory_bytes["fp32"]


def test_memory_is_computed_from_the_shape() -> None:
    gpt2 = computed("openai-community/gpt2")
    width, layers, vocabulary, positions = 768, 12, 50_257, 1024
    matrices = vocabulary * width + positions * width + layers * 12 * width * width
    vectors = layers * (9 + 4) * width + 2 * width  # biases and norms of each layer, last norm
    assert gpt2.parameters == matrices + vectors
    assert gpt2.memory_bytes == {"fp32": 4 * (matrices + vectors), "int8": matrices + 4 * vectors}


@pytest.mark.parametrize(
    "name", ["HuggingFaceM4/idefics-9b", "nlpconnect/vit-gpt2-image-captioning"]
)
def test_weights_of_a_decoder_count_once(name: str) -> None:
    """`admit` needs of a decoder what projects the source: less than a tenth of all weights."""
    found = computed(name)
    assert found.memory_bytes["fp32"] < 1.1 * 4 * found.parameters


def test_unsupported_value_is_a_no_with_its_reason() -> None:
    checkpoint = LISTED["openai-community/gpt2"]
    changed = Listed(**{**vars(checkpoint), "config": {**checkpoint.config, "n_embd": 770}})
    found = entry(changed)
    assert not found.is_exportable
    assert "n_embd = 770" in found.reason


def test_unknown_family_is_a_no_without_the_list_of_families() -> None:
    checkpoint = Listed("x/y", "main", "generate", "mit", 1000, {"model_type": "mamba"})
    assert entry(checkpoint) == Entry(
        "x/y",
        "main",
        ("generate",),
        "mit",
        1000,
        {"fp32": 4000, "int8": 1000},
        reason="model_type 'mamba' is not supported",
    )


@pytest.mark.usefixtures("_computed_once")
def test_table_and_json_list_the_same_checkpoints_of_a_task() -> None:
    code, table = _run("--task", "embed")
    assert code == 0
    code, text = _run("--task", "embed", "--json")
    assert code == 0
    found = json.loads(text)
    assert {each["name"] for each in found} >= EMBEDDING
    assert all(each["name"] in table for each in found)
    assert "openai-community/gpt2" not in table
    exportable = sum(each["exported"] for each in found)
    assert f"{exportable} of {len(found)} can be exported by this version" in table
    for each in found:
        assert each["exported"] == (each["reason"] is None)


@pytest.mark.usefixtures("_computed_once")
def test_task_without_a_checkpoint_is_one_line() -> None:
    code, output = _run("--task", "sing")
    assert (code, output) == (1, "no checkpoint is listed for sing\n")


def test_every_task_that_an_architecture_declares_has_a_checkpoint() -> None:
    """Of each checkpoint the tasks are those of its configuration, as another test has it."""
    found = {checkpoint.task for checkpoint in LISTED.values()}
    for checkpoint in LISTED.values():
        kind = checkpoint.config["model_type"]
        if kind in ARCHITECTURES and checkpoint.name not in NOT_EXPORTED:
            config = architecture(kind).read_config(checkpoint.config)
            found |= {*tasks(architecture(kind), config, None)}
    assert {task for name in families() for task in architecture(name).tasks} <= found


PAGE = Path(__file__).parents[2] / "docs" / "checkpoints.md"
TYPES = set(MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES)
SERVED = TYPES & ARCHITECTURES.keys()


def _section(title: str) -> str:
    """The part of the page under a heading."""
    return PAGE.read_text(encoding="utf-8").partition(f"## {title}\n")[2].partition("\n## ")[0]


def _named(header: str) -> list[str]:
    """`model_type`s of the first column of the table that begins with a header."""
    rows = _section("Encoder-decoders").partition(f"| `model_type` | {header} |")[2].splitlines()
    table = rows[2 : next(n for n, row in enumerate(rows) if n and not row.startswith("|"))]
    return [name for row in table for name in re.findall("`([^`]+)`", row.split("|")[1])]


def test_every_type_is_in_one_of_the_two_tables() -> None:
    refused = _named("why it is refused")
    assert len(refused) == len(set(refused))
    assert set(refused) == TYPES - SERVED
    assert set(_named("tasks | examples | paper")) >= SERVED


@pytest.mark.parametrize("model_type", sorted(TYPES - SERVED))
def test_refusal_names_the_type(model_type: str) -> None:
    with pytest.raises(CheckpointError, match=f"^model_type '{model_type}' is not supported"):
        architecture(model_type)


@pytest.mark.parametrize("model_type", REFUSED)
def test_refusal_says_why_where_the_page_does(model_type: str) -> None:
    assert model_type not in ARCHITECTURES
    assert f"`{model_type}`" in PAGE.read_text(encoding="utf-8")
    with pytest.raises(CheckpointError, match=f"'{model_type}' is not supported, because .*; supp"):
        architecture(model_type)


BIG = {"d_model": 1024, "nhead": 16, "dim_feedforward": 4096}


@pytest.mark.parametrize(("sizes", "millions"), [({}, 65), (BIG, 213)])
def test_parameters_are_those_of_the_papers_table(sizes: Mapping[str, int], millions: int) -> None:
    """Table 3 of the paper, with its shared vocabulary of 37 000 tokens (§5.1)."""
    config = read_config({"vocab_size": 37_000, "max_positions": 512, **sizes})
    with torch.device("meta"):
        network = Transformer(config)
    count = sum(parameter.numel() for parameter in network.parameters())
    assert count / 1e6 == pytest.approx(millions, rel=0.04)
