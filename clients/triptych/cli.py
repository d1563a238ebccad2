"""The command line `triptych`: one module of `commands` for each word, and one way to fail.

Modules of `commands` import what they need when they run, so that `triptych --help` is quick and a
client's machine needs neither Triton nor torch.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated, NoReturn

import typer

from triptych.commands.caption import caption
from triptych.commands.export import export
from triptych.commands.gateway import gateway
from triptych.commands.generate import generate
from triptych.commands.models import models
from triptych.commands.serve import serve
from triptych.commands.translate import translate
from triptych.commands.triton import triton
from triptych.commands.zero_shot import zero_shot

INTERRUPTED = 130
FORWARDED = {"allow_extra_args": True, "ignore_unknown_options": True}

app = typer.Typer(
    name="triptych",
    help="Vision-and-language transformers: exported to verified ONNX, served by Triton.",
    epilog="triptych COMMAND --help has examples.",
    add_completion=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
app.command(add_help_option=False, context_settings=FORWARDED)(export)
app.command()(serve)
app.command()(triton)
app.command(add_help_option=False, context_settings=FORWARDED)(gateway)
app.command()(models)
app.command()(translate)
app.command()(caption)
app.command("zero-shot")(zero_shot)
app.command()(generate)


def _print_version(wanted: bool) -> None:
    if wanted:
        from triptych import __version__

        typer.echo(f"triptych {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print it."),
    ] = False,
) -> None:
    """Vision-and-language transformers: exported to verified ONNX, served by Triton."""


def main() -> NoReturn:
    """Entry point of the console script."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code; a failure is one line on stderr."""
    try:
        code = typer.main.get_command(app).main(
            list(arguments), prog_name="triptych", standalone_mode=False
        )
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except Exception as error:  # the edge: people get a line, never a traceback
        message, code = _explained(error)
        if message:
            typer.echo(f"triptych: {message}", err=True)
    return code if isinstance(code, int) else 0


def _explained(error: Exception) -> tuple[str, int]:
    """One line for people, and the exit code."""
    text = " ".join(str(error).split())
    if hasattr(error, "format_message"):  # typer's own: a wrong flag, a missing argument
        context = getattr(error, "ctx", None)
        hint = f" (see {context.command_path} --help)" if context else ""
        return " ".join(error.format_message().split()) + hint, int(getattr(error, "exit_code", 2))
    # Ours and the server's tree have a root of the same name; importing both would be slow.
    if any(kind.__name__ == "TriptychError" for kind in type(error).__mro__):
        request_id = getattr(error, "request_id", None)
        return text + (f" (request {request_id})" if request_id else ""), 1
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror, 1
    return f"internal error: {type(error).__name__}: {text}", 1
