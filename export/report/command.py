"""`triptych verify NAME`: repeats the gate on a published bundle and writes a report."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Annotated

import typer
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from rich.console import Console

from export.checkpoint.checkpoint import Checkpoint, open_checkpoint
from export.checkpoint.load_network import limit_threads
from export.precision import Precision
from export.report.checks import Verification
from export.report.findings import Check, Findings, Status, charts
from inference.bundle.manifest import Bundle, Manifest
from inference.bundle.reader import newest_bundle, open_bundle, versions
from inference.errors import BundleError, CheckpointError, SetupError
from triptych.system_errors import explain

# The report as one HTML file: no script, no external resource, readable in light and dark.

_TEMPLATE = "page.html.jinja"


def html_page(findings: Findings) -> str:
    """The page's text."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
    )
    drawn = charts(findings)
    return environment.get_template(_TEMPLATE).render(
        findings=findings,
        charts=drawn,
        label_width=max((len(bar.label) for chart in drawn for bar in chart.bars), default=0),
        verdict="passed" if findings.has_passed else "failed",
        origin=_origin(findings),
    )


def _origin(findings: Findings) -> str:
    """Where the weights are from, and what results were held against."""
    name, revision = findings.source["name"], findings.source.get("revision")
    source = f"Exported from {name}" + (f" at {revision}" if revision else "")
    if findings.checkpoint is None:
        return f"{source}; verified without its checkpoint."
    return f"{source}; verified against {findings.checkpoint}."


console = Console(highlight=False)
_MARKS = {
    Status.PASSED: "[green]✓[/green]",
    Status.FAILED: "[red]✗[/red]",
    Status.NOT_REPEATED: "[yellow]–[/yellow]",
}


def verify(
    name: Annotated[str, typer.Argument(help="Bundle in the model repository.")],
    repository: Annotated[
        Path, typer.Option(envvar="TRIPTYCH_REPOSITORY", help="Model repository.")
    ] = Path("model_repository"),
    checkpoint: Annotated[
        str | None,
        typer.Option(
            help="Folder or hub name of the checkpoint it was exported from; if not given, the "
            "place that its manifest names, where that still exists."
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(help="Folder for report.json and report.html; default: verification/NAME."),
    ] = None,
    loaded: Annotated[
        bool,
        typer.Option(
            "--loaded", help="Only what each load checks: files, and a few outputs; in seconds."
        ),
    ] = False,
) -> None:
    """Repeats the gate on a published bundle and writes a report with plots.

    \b
    triptych verify my-model
    triptych verify my-model --checkpoint path/to/checkpoint --output report
    triptych verify my-model --loaded     # on the machine that is to serve it

    With its checkpoint the bundle is compared with PyTorch: outputs and tokens, or for int8 the
    loss. Without it: files unchanged since the export, graphs that load with the declared
    interface, finite outputs, rows alone equal to rows in a batch, int8 against an fp32 bundle of
    the same checkpoint. The newest version is verified; its files are not changed.

    Exit code: 0 if no check failed, else 1. Checks that could not be repeated are listed and do
    not fail.
    """
    limit_threads()
    try:
        findings = _verify(name, repository, checkpoint, is_loaded=loaded)
        folder = output or Path("verification") / name
        if not loaded:
            _write(findings, folder)
    except (SetupError, OSError) as error:
        place = output or Path("verification")
        text = f"error: {explain(error, place)}"
        Console(stderr=True, highlight=False).print(text, markup=False, soft_wrap=True)
        raise typer.Exit(1) from error
    verdict = "passed" if findings.has_passed else "FAILED"
    where = "" if loaded else f": {folder / 'report.html'}"
    console.print(f"{name} version {findings.version} {verdict}{where}", soft_wrap=True)
    if not findings.has_passed:
        raise typer.Exit(1)


def _verify(name: str, repository: Path, source: str | None, *, is_loaded: bool) -> Findings:
    bundle = newest_bundle(repository, name)
    if is_loaded:
        return Verification(bundle, None, listener=_print_check).check_loaded()
    checkpoint, missing = find_checkpoint(bundle.manifest, source)
    original = None if checkpoint else find_original(repository, bundle.manifest)
    logging.getLogger("torch").setLevel(logging.ERROR)
    with console.status(f"verifying {name} version {bundle.version} …"):
        return Verification(
            bundle, checkpoint, missing=missing, original=original, listener=_print_check
        ).run()


def _print_check(check: Check) -> None:
    console.print(f"{_MARKS[check.status]} {check.title} ({check.seconds:.1f} s)", soft_wrap=True)
    style = None if check.status is Status.PASSED else "bold"
    prefix = "" if check.status is Status.PASSED else f"{check.status}: "
    console.print(f"    {prefix}{check.detail}", markup=False, soft_wrap=True, style=style)


def find_checkpoint(manifest: Manifest, source: str | None) -> tuple[Checkpoint | None, str]:
    """The checkpoint of a bundle, or None and the reason.

    Args:
        source: What the user named; it must exist.

    Raises:
        CheckpointError: the named source cannot be opened.
    """
    if source is not None:
        return open_checkpoint(source), ""
    location, revision = manifest.source.location, manifest.source.revision
    advice = "give it with --checkpoint"
    if location is None:
        return None, f"the manifest does not record where its checkpoint is: {advice}"
    if revision is None and not Path(location).is_dir():
        return None, f"its checkpoint is no longer at {location}: {advice}"
    try:
        return open_checkpoint(location, revision), ""
    except CheckpointError as error:
        return None, f"{error}; {advice}"


def find_original(repository: Path, manifest: Manifest) -> Bundle | None:
    """A complete fp32 bundle of the same checkpoint, for a bundle of lower precision."""
    wanted = manifest.source.checkpoint_hash
    if manifest.precision == Precision.FP32 or wanted is None or not repository.is_dir():
        return None
    for model in sorted(entry for entry in repository.iterdir() if entry.is_dir()):
        for version in versions(model):
            try:
                found = open_bundle(model / str(version))
            except BundleError:
                continue
            source = found.manifest.source
            if found.manifest.precision == Precision.FP32 and source.checkpoint_hash == wanted:
                return found
    return None


def _write(findings: Findings, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(findings.as_json(), indent=2, ensure_ascii=False)
    (folder / "report.json").write_text(text + "\n", encoding="utf-8")
    (folder / "report.html").write_text(html_page(findings), encoding="utf-8")


if __name__ == "__main__":
    typer.run(verify)
