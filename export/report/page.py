"""The report as one HTML file: no script, no external resource, readable in light and dark."""

from __future__ import annotations

from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from export.report.charts import charts, widest
from export.report.findings import Findings

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
        label_width=widest(drawn),
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
