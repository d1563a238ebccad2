"""What `import triptych` promises."""

import inspect
import subprocess
import sys
from collections.abc import Callable

import pytest

import triptych
from triptych import calls, errors, generation
from triptych.tasks.caption import CaptionRequest
from triptych.tasks.generate import GenerateRequest
from triptych.tasks.translate import TranslateRequest
from triptych.tasks.zero_shot import ZeroShotRequest

CLIENTS = (triptych.Client, triptych.AsyncClient, triptych.GrpcClient)


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


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize(
    "call",
    [
        calls.translate,
        calls.caption,
        calls.zero_shot,
        calls.models,
        calls.translate_stream,
        calls.caption_stream,
        generation.generate,
        generation.generate_stream,
    ],
)
def test_each_client_has_each_verb_with_its_arguments(client: type, call: Callable) -> None:
    method = getattr(client, call.__name__)
    assert list(inspect.signature(method).parameters) == [
        "self",
        *inspect.signature(call).parameters,
    ]
    assert method.__doc__ == call.__doc__


@pytest.mark.parametrize(
    ("verb", "message", "unsaid"),
    [
        (calls.translate, TranslateRequest, {"stream"}),
        (calls.caption, CaptionRequest, {"stream"}),
        (calls.zero_shot, ZeroShotRequest, set()),
        (generation.generate, GenerateRequest, {"stream"}),
        (
            generation.generate_stream,
            GenerateRequest,
            {"stream", "n", "best_of", "num_beams", "length_penalty", "early_stopping"},
        ),
    ],
)
def test_each_verb_takes_every_field_of_its_message(
    verb: Callable, message: type, unsaid: set[str]
) -> None:
    assert set(inspect.signature(verb).parameters) == set(message.model_fields) - unsaid


def loaded_by(statement: str) -> set[str]:
    """Top-level packages in a fresh interpreter after a statement."""
    program = f"{statement}; import sys; print(*{{name.split('.')[0] for name in sys.modules}})"
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    return set(result.stdout.split())


def test_importing_the_package_loads_nothing() -> None:
    heavy = {"httpx", "pydantic", "grpc", "google", "numpy", "typer", "serving", "export"}
    assert not loaded_by("import triptych") & heavy


def test_the_http_client_needs_httpx_and_pydantic_only() -> None:
    # rich may be there: httpx loads it for its own command line.
    others = {"grpc", "google", "numpy", "typer", "PIL", "serving", "export"}
    assert not loaded_by("import triptych; triptych.Client().close()") & others


def test_the_grpc_client_loads_nothing_of_the_server() -> None:
    assert not loaded_by("import triptych; triptych.GrpcClient().close()") & {"serving", "export"}


def test_the_command_line_starts_without_the_clients() -> None:
    heavy = {"httpx", "pydantic", "grpc", "google", "numpy", "rich", "torch", "serving", "export"}
    assert not loaded_by("import triptych.cli") & heavy
