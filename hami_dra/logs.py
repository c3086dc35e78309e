"""Logging of all programs: text for people, JSON for machines, HAMi's verbosity levels. Set up once, by the command."""

import json
import logging
import sys
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final, TextIO

from hami_dra.api.printable import escaped

_OURS: Final = ("controller", "hami_dra")
DECISIONS: Final = "hami_dra.decisions"
"""Logger of decisions; see `controller.reconcile.observability.decision_logging`."""
NODES: Final = logging.DEBUG
"""Level of -v4: one line per node."""
DETAILS: Final = 5
"""Level of -v5: also one line per card."""
_V_NODES: Final = 4
_V_DETAILS: Final = 5


class LogFormat(StrEnum):
    TEXT = "text"
    JSON = "json"


class _Utc(logging.Formatter):
    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: ARG002, N802 (logging's names)
        return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class _Text(_Utc):
    """One line for each record, whatever the objects that it quotes contain; a traceback follows, indented."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 (logging's name)
        record.message = escaped(record.message)
        return super().formatMessage(record)

    def formatException(self, ei: Any) -> str:  # noqa: N802 (logging's name)
        return "  " + escaped(super().formatException(ei), keep="\n").replace("\n", "\n  ")


class _Json(_Utc):
    def format(self, record: logging.LogRecord) -> str:
        entry = {
            "time": self.formatTime(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        entry |= getattr(record, "fields", {})
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return escaped(json.dumps(entry, ensure_ascii=False))


def configure(verbosity: int, form: LogFormat, stream: TextIO = sys.stderr) -> None:
    """Configure logging.

    `verbosity`: 0 warnings only, 1 to 3 normal, 4 one line per node and decision, 5 everything,
    including cards.
    """
    logging.addLevelName(DETAILS, "V5")
    handler = logging.StreamHandler(stream)
    formatter = _Json() if form is LogFormat.JSON else _Text("%(asctime)s %(levelname)-7s %(name)s: %(message)s")
    handler.setFormatter(formatter)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    level = logging.WARNING if verbosity <= 0 else logging.DEBUG if verbosity >= _V_DETAILS else logging.INFO
    for name in _OURS:
        logging.getLogger(name).setLevel(level)
    decisions = logging.getLogger(DECISIONS)
    if verbosity >= _V_DETAILS:
        decisions.setLevel(DETAILS)
    elif verbosity >= _V_NODES:
        decisions.setLevel(NODES)
