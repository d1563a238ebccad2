"""Tables of request fields in the documentation."""

import re

import pytest

from codegen.pages import with_tables
from triptych.parameters import GenerationParameters
from triptych.tasks import TASKS

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
