"""How a log line is made: levels, rendering, and what must never be in one.

Loaded by ``zonewise.runtime.process.logs`` at the first line, see there. What is written is bounded
and clean: the value of a field whose name says it is a credential is replaced, tokens and private
keys are cut out of all other values however deep they are, and no value is longer than
``VALUE_LIMIT``. Control characters are escaped, whatever their origin. This is the last safeguard,
not a licence: callers must not pass credentials to a log.

Text is one line per event, ``time LEVEL part: sentence field=value …``; only a traceback adds
lines. JSON is one object per line. Loggers of the standard library (asyncio, aiohttp) are written
the same way.
"""

from __future__ import annotations

import json
import logging
import re
import sys
from typing import IO, TYPE_CHECKING, Any, cast

import msgspec
import structlog

from zonewise.api.values.printable import escape_unprintable, escape_unprintable_json

if TYPE_CHECKING:
    from collections.abc import Mapping

    from structlog.typing import EventDict, FilteringBoundLogger, Processor, WrappedLogger

    from zonewise.runtime.process.logs import Format

VALUE_LIMIT = 2000
TRACEBACK_LIMIT = 20_000
HIDDEN = "(hidden)"

_DEPTH = 6
_LEVELS = (logging.WARNING, logging.INFO, logging.DEBUG)
_SECRET_NAME = re.compile(
    r"(token|passwd|password|secret|authorization|credentials?|cookie|private[_.-]?key"
    r"|(client|tls|ca)[_.-]?key)([_.-]?data)?$",
    re.IGNORECASE,
)
_SECRET_TEXT = re.compile(
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)"
    r"|\b(?:[Bb]earer|[Bb]asic)\s+[A-Za-z0-9._~+/=-]{8,}"
    r"|\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]*",
    re.DOTALL,
)


def configure(*, verbosity: int, format: Format, stream: IO[str] | None) -> None:
    """Set up structlog and the standard library's root logger; below nought, for errors alone."""
    level = logging.ERROR if verbosity < 0 else _LEVELS[min(verbosity, len(_LEVELS) - 1)]
    processors: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.ExceptionRenderer(),
        _cleaned,
        _json if format == "json" else _text,
    ]
    structlog.configure(
        processors=processors,
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=lambda *_: _Sink(stream),
        cache_logger_on_first_use=False,
    )
    root = logging.getLogger()
    for handler in [handler for handler in root.handlers if isinstance(handler, _Forward)]:
        root.removeHandler(handler)
    root.addHandler(_Forward())
    root.setLevel(logging.DEBUG if verbosity >= len(_LEVELS) else logging.WARNING)


def bound(name: str) -> FilteringBoundLogger:
    """A structlog logger of one part of the program."""
    return cast("FilteringBoundLogger", structlog.get_logger().bind(logger=name))


def clean(value: object, *, name: str = "", depth: int = _DEPTH) -> Any:
    """The value as it may be written: without credentials, bounded, made of plain JSON types."""
    if value is None or isinstance(value, bool | int | float):
        return value
    if name and _SECRET_NAME.search(name):
        return HIDDEN
    if depth == 0:
        return "…"
    if isinstance(value, dict):
        return {
            str(key): clean(item, name=str(key), depth=depth - 1) for key, item in value.items()
        }
    if isinstance(value, list | tuple | set | frozenset):
        return [clean(item, depth=depth - 1) for item in value]
    if isinstance(value, bytes | bytearray | memoryview):
        return f"({len(value)} bytes)"
    limit = TRACEBACK_LIMIT if name == "exception" else VALUE_LIMIT
    text = _SECRET_TEXT.sub(HIDDEN, str(value))
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _cleaned(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    return {key: clean(value, name=key) for key, value in event.items()}


def _json(_logger: WrappedLogger, _method: str, event: EventDict) -> str:
    first = {"time": event.pop("timestamp"), "level": event.pop("level")}
    who = {"logger": event.pop("logger", ""), "event": event.pop("event", "")}
    return _encoded({**first, **who, **event}) + "\n"


def _text(_logger: WrappedLogger, _method: str, event: EventDict) -> str:
    time, level = event.pop("timestamp"), str(event.pop("level")).upper()
    name, sentence = escape_unprintable(event.pop("logger", "")), _line(event.pop("event", ""))
    trace = event.pop("exception", None)
    fields = "".join(f" {escape_unprintable(key)}={_field(value)}" for key, value in event.items())
    text = f"{time} {level:<7} {name}: {sentence}{fields}\n"
    return f"{text}{escape_unprintable(str(trace), keep_lines=True)}\n" if trace else text


def _field(value: object) -> str:
    if isinstance(value, str) and value and value.isprintable() and not set(value) & set(' "='):
        return value
    return _encoded(value)


def _line(value: object) -> str:
    text = str(value)
    return text if text.isprintable() else _encoded(text)


def _encoded(value: object) -> str:
    """As JSON; a lone surrogate, which UTF-8 cannot encode, is escaped."""
    try:
        return escape_unprintable_json(msgspec.json.encode(value).decode())
    except UnicodeEncodeError:
        return escape_unprintable_json(json.dumps(value, ensure_ascii=True, default=str))


class _Sink:
    """Writes whole lines; stderr is looked up each time, as it may be replaced meanwhile."""

    def __init__(self, stream: IO[str] | None) -> None:
        self._stream = stream

    def msg(self, line: str) -> None:
        stream = self._stream if self._stream is not None else sys.stderr
        stream.write(line)
        stream.flush()

    debug = info = warning = error = msg


class _Forward(logging.Handler):
    """Sends what libraries log through the same renderer."""

    _methods: Mapping[int, str] = {10: "debug", 20: "info", 30: "warning", 40: "error"}

    def emit(self, record: logging.LogRecord) -> None:
        method = self._methods.get(min(record.levelno, 40) // 10 * 10, "debug")
        try:
            getattr(bound(record.name), method)(record.getMessage(), exc_info=record.exc_info)
        except Exception:
            self.handleError(record)
