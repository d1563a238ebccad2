"""The command line `triptych`: its commands, and how failures are reported.

Commands import what they need when they run, so that `triptych --help` is quick and a client needs
neither Triton nor torch: those of the server and the exporter are loaded by name, those of the
tasks are built from their declarations.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Annotated, Any, NoReturn

import typer
import typer.core

from triptych.commands.glossary import glossary, models
from triptych.commands.lazy_commands import LAZY_COMMANDS, single
from triptych.errors import TriptychError
from triptych.generated.summaries import SUMMARIES
from triptych.system_errors import explain

INTERRUPTED = 130
_STDERR = 2
USE = "Use a gateway"
"""The first panel of `--help`; the others are those of `LAZY_COMMANDS`."""


class Commands(typer.core.TyperGroup):
    """The commands of this module, one for each task, and those that are loaded when called.

    Contexts are `Any` because typer has its own copy of click, or uses click's, by version.
    """

    def list_commands(self, ctx: Any) -> list[str]:
        """Names in the order of `--help`."""
        return [*SUMMARIES, *super().list_commands(ctx), *LAZY_COMMANDS]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command of a name; None where there is none."""
        if cmd_name in LAZY_COMMANDS:
            return LAZY_COMMANDS[cmd_name].load(cmd_name)
        return super().get_command(ctx, cmd_name) or _task_command(cmd_name)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write a table for each panel, without building the commands of the tasks."""
        own = (super(Commands, self).get_command(ctx, name) for name in self.commands)
        panels = {USE: [*SUMMARIES.items(), *((each.name, each.help) for each in own if each)]}
        for name, command in LAZY_COMMANDS.items():
            panels.setdefault(command.panel, []).append((name, command.summary))
        for panel, rows in panels.items():
            with formatter.section(panel):
                formatter.write_dl(rows)


def _task_command(name: str) -> Any:
    from triptych.tasks import TASKS

    if name not in TASKS:
        return None
    from triptych.commands.task_command import task_function

    return single(name, task_function(TASKS[name]))


app = typer.Typer(
    name="triptych",
    cls=Commands,
    help="Vision-and-language transformers: exported to verified ONNX, served by Triton.",
    epilog="triptych COMMAND --help has examples.",
    add_completion=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
app.command()(models)
app.add_typer(glossary, name="glossary")


def _print_version(wanted: bool) -> None:
    if wanted:
        from triptych import __version__

        typer.echo(f"triptych {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """Vision-and-language transformers: exported to verified ONNX, served by Triton."""


def main() -> NoReturn:
    """Entry point of the console script."""
    open_standard_streams()
    sys.exit(run(sys.argv[1:]))


def open_standard_streams() -> None:
    """Have the descriptors 0 to 2 be open: /dev/null where they are not.

    The next file or socket would get such a number, and what is printed would be written to it.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= _STDERR:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)


def run(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code; a failure is one line on stderr."""
    try:
        code = typer.main.get_command(app).main(
            list(arguments), prog_name="triptych", standalone_mode=False
        )
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except Exception as error:  # the edge of the program: one line, never a traceback
        message, code = _explain(error)
        if message:
            typer.echo(f"triptych: {message}", err=True)
    return code if isinstance(code, int) else 0


def _explain(error: Exception) -> tuple[str, int]:
    """One line, and the exit code."""
    text = " ".join(str(error).split())
    if hasattr(error, "format_message"):  # typer's own: a wrong flag, a missing argument
        context = getattr(error, "ctx", None)
        hint = f" (see {context.command_path} --help)" if context else ""
        return " ".join(error.format_message().split()) + hint, int(getattr(error, "exit_code", 2))
    if isinstance(error, TriptychError):
        request_id = getattr(error, "request_id", None)
        return text + (f" (request {request_id})" if request_id else ""), 1
    if isinstance(error, OSError) and error.strerror:
        return explain(error), 1
    return f"internal error: {type(error).__name__}: {text}", 1
