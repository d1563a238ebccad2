"""The table of settings in the documentation."""

from codegen.settings import with_settings

BLOCK = "<!-- settings: made by `make proto` -->\nstale text\n<!-- end of settings -->"
PAGE = f"# Title\n\n{BLOCK}\nAfter.\n"


def test_table_replaces_what_stood_in_the_block() -> None:
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
