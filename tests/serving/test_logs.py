"""Log lines as text and as JSON."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from serving import logs

Captured = pytest.CaptureFixture[str]


@pytest.fixture
def root(monkeypatch: pytest.MonkeyPatch) -> logging.Logger:
    """A root logger of the test's own."""
    root = logging.RootLogger(logging.WARNING)
    monkeypatch.setattr(logging, "root", root)
    for name in ("_srcfile", "logThreads", "logProcesses", "logMultiprocessing"):
        monkeypatch.setattr(logging, name, getattr(logging, name))  # restored behind the test
    return root


def configure(root: logging.Logger, *, as_json: bool) -> None:
    """As at a program's start: pytest has put handlers on the root logger meanwhile."""
    root.handlers.clear()
    logs.configure_logs(as_json=as_json)


def line(root: logging.Logger, capsys: Captured, **extra: Any) -> str:
    root.warning("answered %d requests", 3, extra=extra)
    return capsys.readouterr().err


def test_text_has_the_fields_behind_the_message(root: logging.Logger, capsys: Captured) -> None:
    configure(root, as_json=False)
    text = line(root, capsys, route="/v1/translate", model=None, tokens=7)
    assert text.endswith(" WARNING root: answered 3 requests route=/v1/translate tokens=7\n")


def test_json_has_one_object_per_line(root: logging.Logger, capsys: Captured) -> None:
    configure(root, as_json=True)
    text = line(root, capsys, route="/v1/translate", model=None, path=Path("/models"))
    assert text.count("\n") == 1
    entry = json.loads(text)
    assert list(entry) == ["time", "level", "logger", "message", "route", "path"]
    assert (entry["level"], entry["logger"]) == ("warning", "root")
    assert (entry["message"], entry["path"]) == ("answered 3 requests", "/models")


def test_json_has_the_exception_on_the_same_line(root: logging.Logger, capsys: Captured) -> None:
    configure(root, as_json=True)
    try:
        raise ValueError("no")
    except ValueError:
        root.exception("failed", extra={"model": "clip"})
    text = capsys.readouterr().err
    assert text.count("\n") == 1
    entry = json.loads(text)
    assert entry["exception"].endswith("ValueError: no")
    assert entry["model"] == "clip"
    assert "exc_info" not in entry


def test_info_is_logged_and_requests_of_the_client_are_not(
    root: logging.Logger, capsys: Captured
) -> None:
    configure(root, as_json=False)
    root.info("ready")
    logging.getLogger("httpx").info("HTTP Request")
    assert "ready" in capsys.readouterr().err
    assert logging.getLogger("httpx").level == logging.WARNING


def test_library_warnings_that_a_client_causes_are_not_logged(
    root: logging.Logger, capsys: Captured
) -> None:
    configure(root, as_json=False)
    for name in ("uvicorn.error", "python_multipart.multipart"):
        logging.getLogger(name).warning("Invalid HTTP request received.")
    assert capsys.readouterr().err == ""
