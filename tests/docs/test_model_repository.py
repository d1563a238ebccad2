"""`model_repository/README.md` lists every input, output and option of the code, and no other."""

import re
from pathlib import Path
from typing import Any

from inference.engine import codec
from inference.generation import Overrides

ROOT = Path(__file__).parents[2] / "model_repository"
PAGE = (ROOT / "README.md").read_text(encoding="utf-8")
TYPES = {kind: kind for kind in ("integer", "number", "boolean", "object", "array")}
TYPES["string"] = "text"


def table(head: str) -> list[str]:
    """Rows of the table whose first column has this name, as far as the first empty line."""
    body = PAGE.partition(f"| {head} |")[2].partition("\n\n")[0]
    return [line for line in body.splitlines() if line.startswith("| `")]


def names(head: str) -> list[str]:
    return [re.findall(r"`(\w+)`", row)[0] for row in table(head)]


def option_row(name: str, schema: dict[str, Any]) -> str:
    forms = [form for form in schema.get("anyOf", [schema]) if form.get("type") != "null"]
    values = " or ".join(
        f"`{form['const']}`" if "const" in form else TYPES[form["type"]] for form in forms
    )
    return f"| `{name}` | {values}{bounds(forms[0])} | {schema['description']} |"


def bounds(form: dict[str, Any]) -> str:
    if "minimum" in form and "maximum" in form:
        return f", {number(form['minimum'])} to {number(form['maximum'])}"
    words = {
        "minimum": "at least",
        "exclusiveMinimum": "above",
        "maximum": "up to",
        "exclusiveMaximum": "below",
    }
    found = [f"{word} {number(form[key])}" for key, word in words.items() if key in form]
    if "maxItems" in form:
        found = [f"{number(form['minItems'])} to {number(form['maxItems'])} entries"]
    if "maxLength" in form:
        found = [f"{number(form['minLength'])} to {number(form['maxLength'])} characters"]
    if "maxProperties" in form:
        found = [f"up to {form['maxProperties']:,} entries"]
    return "".join(f", {one}" for one in found)


def number(value: int) -> str:
    return f"2^{value.bit_length() - 1}" if value >= 2**31 else f"{value:,}"


def test_inputs_are_those_of_the_codec() -> None:
    assert names("input") == list(codec.INPUTS)


def test_outputs_are_those_of_the_codec() -> None:
    listed = (codec.__doc__ or "").partition("| output ")[2].partition("\n\n")[0]
    in_code = re.findall(r"^\| `(\w+)`", listed, re.MULTILINE)
    declared = {value for name, value in vars(codec).items() if name.isupper() and name[0] != "_"}
    assert set(in_code) < declared
    assert names("output") == in_code


def test_options_are_those_of_the_engine_with_their_limits() -> None:
    fields = Overrides.model_json_schema()["properties"]
    expected = [option_row(name, schema) for name, schema in fields.items()]
    assert table("option") == expected, "the table should be:\n" + "\n".join(expected)


def test_parameter_that_aborts_is_named() -> None:
    assert f"`{codec.ABORT}`" in PAGE


def rows(head: str) -> dict[str, list[str]]:
    """Cells of the table that begins like this, by the first one."""
    body = PAGE.partition(f"| {head} |")[2].partition("\n\n")[0]
    cells = [line.strip("| ").split(" | ") for line in body.splitlines() if line.startswith("| `")]
    return {row[0].strip("`"): row[1:] for row in cells}


def tensors(config: str, kind: str) -> dict[str, tuple[str, int]]:
    """Name → type and number of dimensions without the batch."""
    found = {}
    for block in re.findall(rf"^{kind} \{{\n(.*?)^\}}", config, re.MULTILINE | re.DOTALL):
        name = re.findall(r'name: "(\w+)"', block)[0]
        found[name] = (re.findall(r"data_type: TYPE_(\w+)", block)[0], block.count("dims:"))
    return found


def test_every_published_model_is_listed_with_its_tensors() -> None:
    generators, stateless = (
        rows("model | inputs | tokenizer, in the version's folder"),
        rows("model | inputs | outputs"),
    )
    configs = {path.parent.name: path.read_text() for path in ROOT.glob("*/config.pbtxt")}
    assert set(generators) | set(stateless) == set(configs)
    for name, config in configs.items():
        if name in generators:
            assert "max_batch_size" not in config
            required = set(tensors(config, "input")) - {"options", "prompt_ids"}
            assert set(re.findall(r"`(\w+)`", generators[name][0])) == (required or {"prompt_ids"})
            continue
        for kind, cell in zip(("input", "output"), stateless[name], strict=True):
            listed = re.findall(r"`(\w+)` (\w+) \(B, ([^)]*)\)", cell)
            expected = tensors(config, kind)
            assert {n: (t, len(dims.split(","))) for n, t, dims in listed} == expected, name
