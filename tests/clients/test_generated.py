"""Committed generated files and tables are what `make proto` writes today."""

from __future__ import annotations

import re
from inspect import Parameter, signature
from pathlib import Path

import pytest

from codegen.__main__ import ROOT, generate
from codegen.pages import with_settings, with_tables
from triptych import Client
from triptych.parameters import GenerationParameters
from triptych.tasks import TASKS


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("generated")
    generate(output)
    return output


def test_generated_files_are_fresh(fresh: Path) -> None:
    names = [path.relative_to(fresh) for path in fresh.rglob("*") if path.is_file()]
    assert len(names) >= 8
    stale = [
        str(name)
        for name in names
        if (ROOT / name).read_text(encoding="utf-8") != (fresh / name).read_text(encoding="utf-8")
    ]
    assert stale == [], "run `make proto`"


def test_a_field_that_was_required_once_is_still_taken_by_position() -> None:
    labels = signature(Client.detect).parameters["labels"]
    assert (labels.kind, labels.default) == (Parameter.POSITIONAL_OR_KEYWORD, None)


BLOCK = "<!-- fields of {}: made by `make proto` -->\n{}<!-- end of fields -->"


def test_table_replaces_what_stood_in_the_block() -> None:
    page = f"# Title\n\n{BLOCK.format('generate', 'old')}\n\nAfter.\n"
    made = with_tables(page, TASKS)
    assert made.startswith("# Title\n\n<!-- fields of generate")
    assert made.endswith("<!-- end of fields -->\n\nAfter.\n")
    assert "old" not in made
    assert with_tables(made, TASKS) == made


@pytest.mark.parametrize("name", GenerationParameters.model_fields)
def test_every_parameter_has_its_description(name: str) -> None:
    made = with_tables(BLOCK.format("generate", ""), TASKS)
    (row,) = (line for line in made.splitlines() if line.startswith(f"| `{name}` |"))
    assert str(GenerationParameters.model_fields[name].description) in row


@pytest.mark.parametrize(
    "row",
    [
        "| `prompts` | text or list of texts |  | Texts to continue. Required. |",
        "| `examples` | list of `{input, output}` |  | Solved examples, in order. |",
        "| `top_p` | number | above 0, up to 1 |"
        " Nucleus sampling: cumulative probability to keep. |",
        "| `logit_bias` | map of integer to number | -1,000 to 1,000 |"
        " Token id to the number added to its logit. |",
        "| `seed` | integer | at least 0, below 2^63 |"
        " Sampling seed; the same seed gives the same tokens. |",
    ],
)
def test_types_and_ranges_are_readable(row: str) -> None:
    assert row in with_tables(BLOCK.format("generate", ""), TASKS).splitlines()


def test_block_of_an_unknown_task_is_an_error() -> None:
    with pytest.raises(KeyError, match="sing"):
        with_tables(BLOCK.format("sing", ""), TASKS)


@pytest.mark.parametrize("name", ["chat", "caption"])
def test_parameters_that_generate_explains_are_named_once(name: str) -> None:
    rows = with_tables(BLOCK.format(name, ""), TASKS).splitlines()
    (named,) = (row for row in rows if "(generate.md#fields)" in row)
    fields = set(TASKS[name].request.model_fields)
    shared = fields & set(GenerationParameters.model_fields)
    assert shared <= set(re.findall(r"`(\w+)`", named))
    cells = [row.split("|")[1] for row in rows if row.startswith("| `")]
    assert {found for cell in cells for found in re.findall(r"`(\w+)`", cell)} == fields


SETTINGS_BLOCK = "<!-- settings: made by `make proto` -->\nstale text\n<!-- end of settings -->"
PAGE = f"# Title\n\n{SETTINGS_BLOCK}\nAfter.\n"


def test_settings_table_replaces_what_stood_in_the_block() -> None:
    made = with_settings(PAGE)
    assert made.startswith("# Title\n\n<!-- settings")
    assert made.endswith("<!-- end of settings -->\nAfter.\n")
    assert "stale text" not in made
    assert with_settings(made) == made
    assert with_settings("no block") == "no block"


def test_settings_that_several_commands_have_alike_are_one_row() -> None:
    rows = with_settings(PAGE).splitlines()
    (rows_flag,) = (row for row in rows if row.startswith("| `--max-rows` |"))
    assert rows_flag.startswith("| `--max-rows` | serve, triton, batch | `TRIPTYCH_MAX_ROWS` |  | ")
    assert len([row for row in rows if row.startswith("| `--glossaries` |")]) == 2
    assert any(row.startswith("| `--host` | triton |  | `127.0.0.1` |") for row in rows)
    assert any(row.startswith("| `--page` | gateway | `TRIPTYCH_PAGE` | `on` |") for row in rows)
    dialects = "`openai,huggingface,tgi,tei,libretranslate,openinference`"
    assert any(f"| `TRIPTYCH_DIALECTS` | {dialects} |" in row for row in rows)
    assert not any("--program" in row for row in rows)
