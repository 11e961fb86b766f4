"""The collector's log on stderr: for each event a line of text, or a line with a JSON object."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Final, Literal

from anchorlib.names import escape

__all__ = ["LogFormat", "log_to_stderr"]

LogFormat = Literal["text", "json"]

_FIELDS: Final = ("run", "rank", "writer", "identity", "peer", "seq", "kind", "code")


def log_to_stderr(form: LogFormat | None) -> None:
    """Sends the collector's log to stderr.

    With a form all events are logged, also the begin and end of each stream. A second call replaces
    what an earlier call has set.

    form: "text" or "json"; None logs only warnings and errors, as text.
    """
    log = logging.getLogger("anchor_server")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Json() if form == "json" else _Text())
    log.handlers = [handler]
    log.setLevel(logging.WARNING if form is None else logging.INFO)
    log.propagate = False


class _Text(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        fields_of_record = {**_fields(record), "time": _time(record)}
        fields = " ".join(f"{name}={_shown(value)}" for name, value in fields_of_record.items())
        return f"anchor: {escape(record.getMessage())} ({fields}){_fault(record)}"


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        entry = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "message": record.getMessage(),
        }
        return json.dumps(
            entry | _fields(record) | ({"fault": _fault(record)} if record.exc_info else {})
        )


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")


def _fields(record: logging.LogRecord) -> dict[str, object]:
    return {name: getattr(record, name) for name in _FIELDS if hasattr(record, name)}


def _shown(value: object) -> str:
    return escape(str(value)).replace(" ", "_")


def _fault(record: logging.LogRecord) -> str:
    # The place of a defect of our own, but no traceback, which may repeat users' values.
    if not record.exc_info or record.exc_info[1] is None:
        return ""
    trace = record.exc_info[1].__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    where = "" if trace is None else f" at {trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}"
    return f": {type(record.exc_info[1]).__name__}{where}"
