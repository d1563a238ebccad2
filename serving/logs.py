"""Log lines: text for terminals, or JSON for machines (`--json-output`). No user text in either."""

from __future__ import annotations

import faulthandler
import logging
import signal
import sys
from functools import partial
from typing import Any

from pythonjsonlogger.core import RESERVED_ATTRS, merge_record_extra
from pythonjsonlogger.json import JsonFormatter

_RESERVED = frozenset((*RESERVED_ATTRS, "taskName", "color_message"))
_NAMES = {"asctime": "time", "levelname": "level", "name": "logger", "exc_info": "exception"}

_LIBRARIES = {
    "httpx": logging.WARNING,  # logs each request at INFO
    "uvicorn.error": logging.ERROR,  # warns of each request that is not HTTP
    "python_multipart": logging.ERROR,  # warns of each damaged body
}


class _TextFormatter(logging.Formatter):
    """Message, then the record's extra fields as key=value."""

    def format(self, record: logging.LogRecord) -> str:
        fields = merge_record_extra(record, {}, _RESERVED)
        text = " ".join(f"{name}={value}" for name, value in fields.items() if value is not None)
        return f"{super().format(record)} {text}".rstrip()


class _JsonFormatter(JsonFormatter):
    """One object per line: time, level, logger, message, extra fields, exception."""

    def __init__(self) -> None:
        super().__init__(
            ("asctime", "levelname", "name", "message"),
            rename_fields=_NAMES,
            reserved_attrs=_RESERVED,
        )

    def process_log_record(self, log_data: dict[str, Any]) -> dict[str, Any]:
        given = {name: value for name, value in log_data.items() if value is not None}
        return {**given, "level": log_data["level"].lower()}


def configure_logs(*, as_json: bool, worker: int | None = None) -> None:
    """Everything at INFO and above to stderr, unless the program has configured logging itself.

    SIGUSR2 writes the stack of each thread there: `kill -USR2` shows where a process hangs.

    Args:
        as_json: One object a line.
        worker: A field of each line, where several workers write lines.
    """
    if sys.__stderr__ is not None:
        faulthandler.register(signal.SIGUSR2, file=sys.__stderr__)
    handler = logging.StreamHandler()
    handler.setFormatter(
        _JsonFormatter()
        if as_json
        else _TextFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
    )
    if worker is not None:
        handler.addFilter(partial(_add_worker, worker))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    # No line shows these fields, the caller's place among them
    # (https://docs.python.org/3/howto/logging.html#optimization).
    logging._srcfile = None
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    for name, level in _LIBRARIES.items():
        logging.getLogger(name).setLevel(level)


def _add_worker(number: int, record: logging.LogRecord) -> bool:
    record.worker = number
    return True
