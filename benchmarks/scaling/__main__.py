"""`python -m benchmarks.scaling measure|simulate`; `STUDY.md` says what comes of it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from benchmarks.harness.machine import write_json

RESULTS = Path(__file__).parents[1] / "results"
app = typer.Typer(add_completion=False)


@app.command()
def measure(
    repository: Annotated[Path, typer.Option(help="Has the examples.")] = Path("model_repository"),
) -> None:
    """Measure this machine: about two minutes, with both cores to itself."""
    from benchmarks.scaling.measure import measure as measured

    write_json(measured(repository), RESULTS / "scaling-measured.json")


@app.command()
def simulate() -> None:
    """Simulate this machine and a cluster, and draw the figures."""
    from benchmarks.scaling.study import study

    study(RESULTS)


app()
