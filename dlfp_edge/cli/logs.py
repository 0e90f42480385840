"""Where log records go: a file of JSON lines, and stderr. Whoever logs waits for neither.

Each of the two has a queue and a thread of its own, so that a terminal that stands still does not hold up the file.
What does not fit the queue is dropped, counted and said.
"""

from __future__ import annotations

import copy
import logging
import os
import queue
import sys
import threading
import traceback
from datetime import datetime
from io import FileIO
from logging.handlers import QueueHandler, QueueListener
from pathlib import Path
from typing import Any

import typer

from dlfp_edge.cli.options import nearest
from dlfp_edge.cli.output import note, picture_is_up
from dlfp_edge.errors import UsageError
from dlfp_edge.experiment.jsonlines import LineFile

LEVELS = ("debug", "info", "warning", "error")
FILE_NAME = "log.jsonl"
QUEUE_LIMIT = 10_000
"""Records that may wait for the disk or the terminal."""

_OURS = "dlfp_edge"
_log = logging.getLogger(__name__)


class Logs:
    """The log of one command, from `start` to `close`.

    `level` is one of `LEVELS`; None keeps what is worth knowing in the file and only warnings on stderr. `file` None
    leaves it to `keep_in`: what is logged before that waits.

    Raises UsageError for an unknown level or a file that cannot be written.
    """

    def __init__(self, level: str | None, file: Path | None) -> None:
        chosen = _level(level)
        self._named = file is not None
        self._file = _Apart(None if file is None else _JsonLines(file, "a"))
        self._stderr = _Apart(_Stderr(logging.WARNING if level is None else chosen))
        self._before = (logging.getLogger(_OURS).level, threading.excepthook)
        logging.getLogger(_OURS).setLevel(chosen)
        for handler in (self._file, self._stderr):
            logging.getLogger().addHandler(handler)
        logging.captureWarnings(True)
        threading.excepthook = _thread_failed

    def keep_in(self, folder: Path) -> None:
        """Write `log.jsonl` of a command's folder, in place of an earlier one, unless a file was named.

        Raises UsageError where that is not possible.
        """
        if not self._named:
            self._file.begin(_JsonLines(folder / FILE_NAME, "w"))

    def close(self) -> None:
        """Log the exception on its way out, if there is one, and write what is left."""
        error = sys.exc_info()[1]
        if isinstance(error, Exception) and not isinstance(error, typer.Exit | typer.Abort):
            _log.error("the command failed: %s", error, exc_info=error)
        level, threading.excepthook = self._before
        logging.captureWarnings(False)
        logging.getLogger(_OURS).setLevel(level)
        for handler in (self._file, self._stderr):
            logging.getLogger().removeHandler(handler)
            handler.close()
        global _current
        _current = None


class _Apart(QueueHandler):
    """Hands records to a target that writes them in a thread of its own; until it has one they wait."""

    def __init__(self, target: logging.Handler | None) -> None:
        super().__init__(queue.SimpleQueue())
        self._listener: QueueListener | None = None
        self._target = target
        self._dropped = 0
        if target is not None:
            self.begin(target)

    def begin(self, target: logging.Handler) -> None:
        """Write to the target from now on."""
        if self._listener is None:
            self._target = target
            self._listener = QueueListener(self.queue, target, respect_handler_level=True)
            self._listener.start()

    def prepare(self, record: logging.LogRecord) -> logging.LogRecord:
        """All that the record says, as text: what it refers to may change."""
        record = copy.copy(record)
        record.msg, record.args = record.getMessage(), None
        if record.exc_info and record.exc_info[0] is not None:
            record.exc_text = "".join(traceback.format_exception(*record.exc_info))
        record.exc_info = None
        return record

    def enqueue(self, record: logging.LogRecord) -> None:
        """Never waits: neither for room nor for a lock that a slow writer holds."""
        if self.queue.qsize() < QUEUE_LIMIT:  # type: ignore[attr-defined]
            self.queue.put_nowait(record)
        else:
            self._dropped += 1

    def close(self) -> None:
        """Write what waits, and stop."""
        if self._listener is not None:
            if self._dropped:
                said = f"{self._dropped} log records were dropped: they came faster than they could be written"
                fields = {"name": __name__, "levelno": logging.WARNING, "levelname": "WARNING", "msg": said}
                self.queue.put_nowait(logging.makeLogRecord(fields))
            self._listener.stop()
            self._listener = None
        if self._target is not None:
            self._target.close()
        super().close()


class _JsonLines(logging.Handler):
    """Appends records to a file. A disk that takes no more is said once, and the command goes on."""

    def __init__(self, path: Path, mode: str) -> None:
        super().__init__()
        self._path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            file = FileIO(path, mode)
            self._lines = LineFile(file, os.fstat(file.fileno()).st_size)
        except OSError as error:
            raise UsageError(f"--log-file: cannot write {path}: {error.strerror or error}; name another") from None

    def emit(self, record: logging.LogRecord) -> None:
        self._lines.append(as_json(record))
        try:
            self._lines.flush()
        except OSError as error:
            note(f"error: {self._path}: {error.strerror or error}; the command goes on without its log")

    def close(self) -> None:
        self._lines.close()
        super().close()


class _Stderr(logging.Handler):
    """Says records on the way to the result. Errors of this package are left to the command, which says them itself."""

    def __init__(self, level: int) -> None:
        super().__init__(level)
        self._said: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        message = record.getMessage()
        if record.levelno < logging.WARNING:
            if not picture_is_up():  # it has no room for them; the file has them
                note(f"{_time(record, 'seconds')} {record.levelname.lower()} {record.name}: {message}{_fields(record)}")
        elif not (record.name.startswith(_OURS) and record.levelno >= logging.ERROR) and message not in self._said:
            self._said.add(message)
            note(f"note: {message}")


_current: Logs | None = None


def start(level: str | None, file: Path | None) -> Logs:
    """Begin the log of this command; the caller closes it."""
    global _current
    _current = Logs(level, file)
    return _current


def keep_log_in(folder: Path) -> None:
    """See `Logs.keep_in`; does nothing where the command has no log."""
    if _current is not None:
        _current.keep_in(folder)


def as_json(record: logging.LogRecord) -> dict[str, Any]:
    """A record as the file has it: when (ISO 8601 with the zone), how grave, who, what, and the figures to it."""
    line: dict[str, Any] = {
        "time": _time(record, "milliseconds"),
        "level": record.levelname.lower(),
        "logger": record.name,
        "message": record.getMessage(),
        "fields": getattr(record, "fields", None) or {},
    }
    return {**line, "traceback": record.exc_text} if record.exc_text else line


def _time(record: logging.LogRecord, precision: str) -> str:
    return datetime.fromtimestamp(record.created).astimezone().isoformat(timespec=precision)


def _fields(record: logging.LogRecord) -> str:
    fields = getattr(record, "fields", None) or {}
    return "".join(f" {name}={value}" for name, value in fields.items())


def _level(name: str | None) -> int:
    if name is None:
        return logging.INFO
    if name.lower() not in LEVELS:
        raise nearest(name, LEVELS, "log level")
    return int(getattr(logging, name.upper()))


def _thread_failed(failure: threading.ExceptHookArgs) -> None:
    """What ends a thread of this process unforeseen: one line for people, the traceback for the file."""
    if failure.exc_value is not None and failure.exc_type is not SystemExit:
        where = failure.thread.name if failure.thread else "a thread"
        note(f"error: {where} failed: {failure.exc_type.__name__}: {failure.exc_value}")
        _log.error("%s failed", where, exc_info=failure.exc_value)
