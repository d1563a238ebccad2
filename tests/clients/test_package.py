"""The public package: its names, its types, and what an import of it loads."""

from __future__ import annotations

import gc
import inspect
import pydoc
import subprocess
import sys
import typing
from collections.abc import AsyncGenerator, Generator
from pathlib import Path

import pytest

import triptych
from tests.programs import run_program
from triptych import errors
from triptych.garbage import without_collection
from triptych.task import Task
from triptych.tasks import TASKS

CLIENTS = (triptych.Client, triptych.AsyncClient, triptych.GrpcClient, triptych.AsyncGrpcClient)


def test_every_public_name_is_there() -> None:
    assert {name for name in triptych.__all__ if getattr(triptych, name) is None} == set()
    assert list(triptych.__all__) == sorted(triptych.__all__)
    assert dir(triptych) == sorted(triptych.__all__)


def test_every_error_is_public_and_drawn() -> None:
    tree = {
        name
        for name, kind in inspect.getmembers(errors, inspect.isclass)
        if issubclass(kind, errors.TriptychError)
    }
    assert tree <= set(triptych.__all__)
    assert errors.__doc__
    assert all(name in errors.__doc__ for name in tree)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Klient'"):
        triptych.Klient  # noqa: B018


METHODS = [
    *(task.method for task in TASKS.values()),
    *(f"{task.method}_stream" for task in TASKS.values() if task.streams),
    "models",
]


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("name", METHODS)
def test_each_client_has_each_method_with_the_same_parameters(client: type, name: str) -> None:
    method, reference = getattr(client, name), getattr(triptych.Client, name)
    signature = inspect.signature(method, eval_str=True)
    assert signature.parameters == inspect.signature(reference, eval_str=True).parameters
    assert inspect.iscoroutinefunction(method) == (
        client in (triptych.AsyncClient, triptych.AsyncGrpcClient) and not name.endswith("_stream")
    )
    if name.endswith("_stream"):
        awaitable = client in (triptych.AsyncClient, triptych.AsyncGrpcClient)
        kind = AsyncGenerator if awaitable else Generator
        assert typing.get_origin(signature.return_annotation) is kind
    assert method.__doc__ == reference.__doc__
    assert all(
        f"    {parameter}: " in method.__doc__
        for parameter in signature.parameters
        if parameter != "self"
    )


@pytest.mark.parametrize("task", TASKS.values(), ids=lambda task: task.name)
def test_each_method_takes_every_field_of_its_request(task: Task) -> None:
    taken = set(inspect.signature(getattr(triptych.Client, task.method)).parameters)
    assert taken == {"self", *task.request.model_fields} - {"stream"}
    if task.streams:
        stream = inspect.signature(getattr(triptych.Client, f"{task.method}_stream")).parameters
        assert set(stream) == taken - set(task.not_streamed)


def test_inputs_are_positional_and_the_rest_is_not() -> None:
    parameters = inspect.signature(triptych.Client.zero_shot).parameters.values()
    positional = [each.name for each in parameters if each.kind is each.POSITIONAL_OR_KEYWORD]
    assert positional == ["self", "images", "labels"]


def test_help_shows_types_and_descriptions() -> None:
    text = pydoc.render_doc(triptych.Client.generate, renderer=pydoc.plaintext)
    assert "examples: 'Iterable[tuple[str, str]] | None' = None" in text
    assert "top_p: Nucleus sampling: cumulative probability to keep." in text
    assert "-> 'GenerateResponse'" in text


def loaded_by(statement: str) -> set[str]:
    """Top-level packages in a fresh interpreter after a statement."""
    program = f"{statement}; import sys; print(*{{name.split('.')[0] for name in sys.modules}})"
    return set(run_program(sys.executable, "-c", program).splitlines()[-1].split())


SERVER = "serving export"


@pytest.mark.parametrize(
    ("statement", "absent"),
    [
        ("import triptych", f"httpx pydantic grpc google numpy typer {SERVER}"),
        # rich may be there: httpx loads it for its own command line.
        ("import triptych; triptych.Client().close()", f"grpc google numpy typer PIL {SERVER}"),
        ("import triptych; triptych.GrpcClient().close()", SERVER),
        ("import triptych.cli", f"httpx pydantic grpc google numpy rich torch {SERVER}"),
        (
            "from triptych import cli; cli.run(['--help'])",
            f"pydantic httpx grpc google numpy torch {SERVER}",
        ),
    ],
)
def test_no_more_is_loaded_than_is_needed(statement: str, absent: str) -> None:
    assert not loaded_by(statement) & set(absent.split())


ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """\
from pathlib import Path
import triptych

def blocking(client: triptych.Client | triptych.GrpcClient) -> None:
    reveal_type(client.translate(["a", "b"], source="es", num_beams=4))
    reveal_type(client.caption(Path("a.png")).data[0].text)
    reveal_type(client.zero_shot([b"png"], ["x", "y"]).data)
    reveal_type(next(client.generate_stream("a", examples=[("a", "b")], stop="x")))
    client.generate_stream("a").close()
    reveal_type(client.models())

async def awaiting(client: triptych.AsyncClient | triptych.AsyncGrpcClient) -> None:
    reveal_type(await client.generate("a", logit_bias={5: 1.0}))
    async for chunk in client.caption_stream("a.png"):
        reveal_type(chunk.text)

def mistakes(client: triptych.Client) -> None:
    client.translate("a", num_beams="4")
    client.translate("a", beams=4)
    client.translate("a", "es")
    client.generate_stream("a", n=2)
    client.zero_shot("a.png")

async def awaited_mistakes(client: triptych.AsyncClient) -> None:
    await client.translate("a", beams=4)
    client.generate_stream("a", n=2)
"""
REVEALED = [
    "triptych.tasks.translate.TranslateResponse",
    "str | None",
    "list[triptych.tasks.zero_shot.Classification]",
    "triptych.messages.Chunk",
    "triptych.messages.ModelList",
    "triptych.tasks.generate.GenerateResponse",
    "str",
]
REFUSED = [
    (18, 'incompatible type "str"; expected "int | None"'),
    (19, 'Unexpected keyword argument "beams"'),
    (20, "Too many positional arguments"),
    (21, 'Unexpected keyword argument "n"'),
    (22, 'Missing positional argument "labels"'),
    (25, 'Unexpected keyword argument "beams"'),
    (26, 'Unexpected keyword argument "n"'),
]


@pytest.mark.slow
def test_types_are_visible_and_mistakes_are_found(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    result = subprocess.run(
        [
            sys.executable,
            "-m",
            "mypy",
            *("--strict", "--no-error-summary", "--cache-dir", ".mypy_cache/typing"),
            str(program),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    lines = result.stdout.splitlines()
    revealed = [line.split('"')[1] for line in lines if "Revealed type" in line]
    assert revealed == REVEALED, result.stdout
    refused = [line for line in lines if ": error: " in line]
    assert len(refused) == len(REFUSED), result.stdout
    for line, (number, part) in zip(refused, REFUSED, strict=True):
        assert f":{number}: " in line
        assert part in line


def test_objects_made_inside_are_kept_and_later_ones_are_collected() -> None:
    frozen, kept = gc.get_freeze_count(), []

    def load() -> None:
        assert not gc.isenabled()
        kept.extend([number] for number in range(1000))
        raise KeyError

    with pytest.raises(KeyError), without_collection():
        load()
    assert gc.isenabled()
    assert gc.get_freeze_count() >= frozen + 1000
