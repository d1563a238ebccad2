"""Log lines: for people, or as JSON for machines (`--json-output`). No user text in either."""

from __future__ import annotations

import json
import logging

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "color_message"}


class _Fields(logging.Formatter):
    """Message, then the record's extra fields as key=value."""

    def format(self, record: logging.LogRecord) -> str:
        line = super().format(record)
        fields = " ".join(f"{name}={value}" for name, value in _extra(record).items())
        return f"{line} {fields}".rstrip()


class _Json(logging.Formatter):
    """One object a line."""

    def format(self, record: logging.LogRecord) -> str:
        entry = {
            "time": self.formatTime(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_extra(record),
        }
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, default=str)


def configure_logs(*, as_json: bool) -> None:
    """Everything at INFO and above to stderr, unless the program has set up logging itself."""
    handler = logging.StreamHandler()
    handler.setFormatter(
        _Json() if as_json else _Fields("%(asctime)s %(levelname)s %(name)s: %(message)s")
    )
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    logging.getLogger("httpx").setLevel(logging.WARNING)  # it logs each request


def _extra(record: logging.LogRecord) -> dict[str, object]:
    return {
        name: value
        for name, value in vars(record).items()
        if name not in _STANDARD and value is not None
    }
