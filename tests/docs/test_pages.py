"""What the documentation names is really there, and its pages stay short enough to be read."""

from __future__ import annotations

import contextlib
import io
import re
import subprocess
from functools import cache
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import BaseModel, ByteSize, TypeAdapter

from benchmarks.history import page
from codegen.pages import COMMANDS
from inference import errors
from inference.engine.scheduler import Capacity
from inference.errors import ModelNotChat, ServingError, SetupError, WrongKey
from serving.gateway.observability.metrics import Metrics
from serving.liveness import heartbeat
from serving.settings.capacity_settings import CapacitySettings
from serving.settings.command_settings import flag_of
from serving.settings.gateway_settings import GatewaySettings
from tests.docs.test_snippets import snippets
from triptych.cli import run
from triptych.messages import Chunk, Model
from triptych.task import Task
from triptych.tasks import TASKS

ROOT = Path(__file__).parents[2]
GLOBS = (
    *("*.md", "docs/**/*.md", "docker/*.md", "benchmarks/**/*.md", "*/README.md"),
    *("examples/*.md", "examples/*/README.md", "tests/*/README.md"),
)
PAGES = sorted(
    {
        path
        for pattern in GLOBS
        for path in ROOT.glob(pattern)
        if not {".venv", ".cache"} & set(path.parts)
    }
)
TOP = (
    r"(?:export|serving|inference|clients|model_repository|tests|docker|benchmarks|docs|examples)/"
)
CITED = re.compile(rf"`({TOP}[\w./-]*)`")
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")
ANCHOR = re.compile(r"\]\(([^)#\s]*)#([^)]+)\)")
VERB = re.compile(r"\bmake ([a-z][a-z0-9-]*)")
COMMAND = re.compile(r"^(?:\$ )?triptych ([a-z-]+)((?: .*)?)$", re.MULTILINE)
ADDED = re.compile(r"title=clients/triptych/tasks/(\w+)\.py")
"""Commands of tasks that a tutorial adds."""
FLAG = re.compile(r"(?<!\S)--[a-z][a-z-]*")

pages = pytest.mark.parametrize("page", PAGES, ids=[str(p.relative_to(ROOT)) for p in PAGES])


@pages
def test_cited_paths_exist(page: Path) -> None:
    cited = set(CITED.findall(page.read_text(encoding="utf-8")))
    missing = [path for path in sorted(cited) if not (ROOT / path).exists()]
    assert [path for path in missing if not _is_ignored(path)] == []


@pages
def test_links_resolve(page: Path) -> None:
    links = {link for link in LINK.findall(page.read_text(encoding="utf-8")) if "://" not in link}
    assert [link for link in sorted(links) if not (page.parent / link).exists()] == []


@pages
def test_anchors_are_headings(page: Path) -> None:
    """GitHub makes an anchor of a heading; some anchors are written."""
    anchors = ANCHOR.findall(page.read_text(encoding="utf-8"))
    lost = [
        f"{link}#{anchor}"
        for link, anchor in anchors
        if "://" not in link
        and (target := page.parent / link if link else page).suffix == ".md"
        and anchor not in _anchors(target)
    ]
    assert lost == []


@pages
def test_make_verbs_exist(page: Path) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    known = set(re.findall(r"^([a-z][a-z0-9-]*):", makefile, re.MULTILINE))
    code = "\n".join(_code(page.read_text(encoding="utf-8")))
    assert sorted(set(VERB.findall(code)) - known) == []


@pages
def test_commands_and_their_flags_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    code, own = "\n".join(_code(text)), set(ADDED.findall(text))
    unknown = [
        f"{command} {flag}"
        for command, rest in COMMAND.findall(code)
        if command not in own
        for flag in FLAG.findall(rest.partition("#")[0])
        if flag not in _help(command, (rest.split() or [""])[0])
    ]
    assert unknown == []


@cache
def _anchors(page: Path) -> set[str]:
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    plain = [re.sub(r"\[([^]]+)\]\([^)]*\)", r"\1", heading).lower() for heading in headings]
    made = {re.sub(r"[^\w -]", "", heading).replace(" ", "-") for heading in plain}
    return made | set(re.findall(r'<a id="([^"]+)">', text))


@cache
def _help(command: str, below: str) -> str:
    """Of a command, or of the command `below` it where it is a group."""
    text = _printed(command)
    is_group = "COMMAND [ARGS]" in text and not below.startswith("-")
    return _printed(command, below) if is_group else text


@cache
def _printed(*command: str) -> str:
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        assert run([*command, "--help"]) == 0
    return output.getvalue()


def _is_ignored(path: str) -> bool:
    """Whether git ignores the path: a file of one machine, or one that a command writes."""
    command = ["git", "check-ignore", "-q", f"{path}/any"]
    return subprocess.run(command, cwd=ROOT, check=False).returncode == 0


def _code(text: str) -> list[str]:
    """Fenced blocks and inline code."""
    pairs = re.findall(r"```[^`\n]*\n(.*?)```|`([^`\n]+)`", text, re.DOTALL)
    return [fenced or inline for fenced, inline in pairs]


FOLDER = ROOT / "docs" / "endpoints"
EXPLAINED = {"index", "error"}
"""Fields of every item, explained for all."""
IN_OTHER_FORMS = (WrongKey, ModelNotChat)
"""Errors of other APIs alone."""

tasks = pytest.mark.parametrize("task", TASKS.values(), ids=list(TASKS))


def text_of(name: str) -> str:
    return (FOLDER / f"{name}.md").read_text(encoding="utf-8")


def names(page: str, head: str) -> set[str]:
    """Names in the first column of the table with this head."""
    body = page.partition(f"| {head} |")[2].partition("\n\n")[0]
    rows = [line.split("|")[1] for line in body.splitlines() if line.startswith("| `")]
    return {name for row in rows for name in re.findall(r"`(\w+)`", row)}


def messages_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type):
        return [annotation] if issubclass(annotation, BaseModel) else []
    return [message for part in get_args(annotation) for message in messages_in(part)]


def nested(message: type[BaseModel]) -> set[str]:
    """Fields of the messages in the fields of a message."""
    below = [
        inner for field in message.model_fields.values() for inner in messages_in(field.annotation)
    ]
    return {name for inner in below for name in {*inner.model_fields, *nested(inner)}}


def item_of(task: Task) -> type[BaseModel]:
    (item,) = messages_in(task.response.model_fields["data"].annotation)
    return item


@tasks
def test_fields_of_the_answer_are_those_of_the_task(task: Task) -> None:
    item = item_of(task)
    assert names(text_of(task.name), "in `data`") == set(item.model_fields) - EXPLAINED


@tasks
def test_nested_fields_are_explained(task: Task) -> None:
    page = text_of(task.name)
    if (
        task.response.model_fields["data"].annotation
        == TASKS["generate"].response.model_fields["data"].annotation
    ):
        page += text_of("generate")  # the answers of both are alike
    missing = nested(item_of(task)) - set(re.findall(r"`(\w+)`", page)) - {"type", "message"}
    assert missing - {"field", "is_incomplete"} == set()


@tasks
def test_page_has_every_way_to_call_it(task: Task) -> None:
    page = text_of(task.name)
    code = "\n".join(snippet.code for snippet in snippets(page))
    assert f"localhost:8080{task.path}" in code
    assert f"client.{task.method}(" in code
    assert f"triptych {task.name} " in code
    assert "AsyncClient(" in code or "GrpcClient(" in code
    assert f"gRPC `{task.verb}`" in page
    assert (f"`{task.verb}Stream`" in page) == task.streams
    assert f"<!-- fields of {task.name}: made by `make proto` -->" in page
    for heading in ("Fields", "Limits and errors", "Python", "Command line", "Other clients"):
        assert f"\n## {heading}\n" in page


@tasks
def test_index_lists_the_endpoint(task: Task) -> None:
    rows = [row for row in text_of("README").splitlines() if f"[`{task.path}`]" in row]
    (row,) = rows
    assert f"({task.name}.md)" in row
    assert (row.split("|")[3].strip() == "yes") == task.streams


def test_chunks_and_models_have_their_fields() -> None:
    assert names(text_of("streams"), "in an event") == set(Chunk.model_fields)
    assert names(text_of("models"), "in `data`") == set(Model.model_fields)


def leaves(error: type[ServingError]) -> list[type[ServingError]]:
    return [error, *(leaf for below in error.__subclasses__() for leaf in leaves(below))]


def test_errors_are_those_of_the_tree() -> None:
    declared = {
        (error.wire, str(error.http_status), error.grpc_status)
        for error in leaves(ServingError)
        if error.__module__ == errors.__name__
        and not issubclass(error, (SetupError, *IN_OTHER_FORMS))
        and error is not ServingError
    }
    body = text_of("README").partition("| `type` | HTTP |")[2].partition("\n\n")[0]
    rows = [line.strip("| ").split(" | ") for line in body.splitlines() if line.startswith("| `")]
    assert {(row[0].strip("`"), row[1], row[2]) for row in rows} == declared


DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "operations.md").read_text(encoding="utf-8")
OTHERS = {"--runtime", "--seed", "--loaded", "--no-self-check"}
"""Flags of `triptych export`, `make fuzz` and `triptych verify`; the negation of a flag."""


def test_the_page_names_every_number_and_no_other() -> None:
    metrics = Metrics()
    metrics.count_answer("/v1/translate", 0.1, "timeout")
    metrics.count_answer("/v1/translate", 0.1, None)
    exposed = re.findall(r"^# TYPE (\S+)", metrics.exposition().decode(), re.MULTILINE)
    numbers = {name for name in exposed if not name.endswith("_created")}
    numbers |= {heartbeat.PREFIX + name for name in (*heartbeat.COUNTERS, *heartbeat.GAUGES)}
    assert set(re.findall(r"`(triptych_\w+)`", PAGE)) == numbers


def table(heading: str) -> dict[str, str]:
    """Setting → its default, of the table with this heading."""
    rows = PAGE.partition(f"| {heading} | default | what it bounds")[2].partition("\n\n")[0]
    found = re.findall(r"^\| `--([a-z-]+)` \| ([^|]+?) \|", rows, re.MULTILINE)
    return {flag.replace("-", "_"): default for flag, default in found}


def test_defaults_of_a_generators_limits_are_the_engines() -> None:
    defaults = table("flag of `serve` and `triton`")
    assert set(defaults) == set(CapacitySettings.model_fields)
    assert CapacitySettings.of(defaults).capacity() == Capacity()


def test_defaults_of_the_edges_limits_are_the_gateways() -> None:
    defaults = table("setting")
    assert defaults.pop("max_connections").startswith("2048, or fewer")
    read = {
        name: TypeAdapter(ByteSize).validate_python(text.removesuffix(" s"))
        for name, text in defaults.items()
    }
    assert len(read) == 3
    assert read == {name: GatewaySettings.model_fields[name].default for name in read}


@pytest.mark.parametrize(
    "page", ["operations", "several-tritons", "supervision", "deployment/one-machine"]
)
def test_flags_of_a_page_for_operators_exist(page: str) -> None:
    cited = set(re.findall(r"`(--[a-z-]+)", (DOCS / f"{page}.md").read_text(encoding="utf-8")))
    assert cited
    fields = {name for settings in COMMANDS.values() for name in settings.model_fields}
    assert cited - {flag_of(name) for name in fields} <= OTHERS


@pytest.mark.parametrize(
    ("page", "heading"), [("docs/speed", "| tokens/s"), ("examples/quality", "| measure | PyTorch")]
)
def test_tables_of_the_readme_are_rows_of_the_page(page: str, heading: str) -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    rows = (heading + readme.partition(heading)[2].partition("\n\n")[0]).splitlines()
    whole = (ROOT / f"{page}.md").read_text(encoding="utf-8").splitlines()
    assert len(rows) > 2
    assert [row for row in rows if row not in whole] == []


def test_page_is_that_of_the_list_and_the_recorded_figures() -> None:
    assert page.PAGE.read_text(encoding="utf-8") == page.text(), "run `triptych compare --render`"


MOST_WORDS = 60_000
FOR_NEWCOMERS = 12_000


def words(page: Path) -> int:
    """Words of a page, as `wc -w` counts them."""
    return len(page.read_text(encoding="utf-8").split())


def words_of_pages() -> dict[str, int]:
    """Page below `docs/` → its words."""
    return {str(page.relative_to(DOCS)): words(page) for page in DOCS.rglob("*.md")}


def listed(counted: dict[str, int]) -> str:
    """The sum, and the longest pages."""
    longest = sorted(counted.items(), key=lambda page: -page[1])[:10]
    lines = [f"{count:6} {name}" for name, count in longest]
    return "\n".join([f"{sum(counted.values())} words, of which", *lines])


def test_pages_are_bounded() -> None:
    counted = words_of_pages()
    print(listed(counted))
    assert sum(counted.values()) <= MOST_WORDS, listed(counted)


def test_what_a_newcomer_reads_is_named_in_order_and_bounded() -> None:
    text = (DOCS / "README.md").read_text(encoding="utf-8")
    links = re.findall(r"\]\(([^)]+)\)", text.partition("|")[0])
    assert links == [
        *("../README.md", "architecture.md", "tutorials/task.md", "tutorials/architecture.md"),
        *("engine.md", "export.md", "verify.md", "endpoints/translate.md"),
    ]
    counted = {link: words(DOCS / link) for link in links}
    print(listed(counted))
    assert sum(counted.values()) <= FOR_NEWCOMERS, listed(counted)
