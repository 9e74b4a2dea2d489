"""Where the parts of the program send their log lines.

structlog takes longer to import than many commands take to run, so this module does not import it:
a ``Logger`` is a name, and ``zonewise.runtime.process.log_lines`` (structlog, rendering, hiding of
credentials) is loaded when the first line is to be written. A program calls ``configure`` once; a
library user who does not gets warnings, as text, on stderr.

Lines are for transitions and faults. Nothing is logged per watch event or per reconcile at the
default level: that is what metrics are for.
"""

from __future__ import annotations

from typing import IO, TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

Format = Literal["text", "json"]
_DEBUG = 10


class _Lines(Protocol):
    def configure(self, *, verbosity: int, format: Format, stream: IO[str] | None) -> None: ...

    def bound(self, name: str) -> FilteringBoundLogger: ...


class _Setup:
    """What ``configure`` chose; a new choice has a new number and unbinds every logger."""

    def __init__(self) -> None:
        self.number = 0

    def lines(self) -> _Lines:
        from zonewise.runtime.process import log_lines

        return log_lines

    def configure(self, *, verbosity: int, format: Format, stream: IO[str] | None) -> None:
        self.lines().configure(verbosity=verbosity, format=format, stream=stream)
        self.number += 1


_setup = _Setup()


class Logger:
    """A named source of log lines; costs nothing until the first one."""

    __slots__ = ("_bound", "_number", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self._number = 0
        self._bound: FilteringBoundLogger | None = None

    @property
    def detailed(self) -> bool:
        """Whether ``debug`` lines are written: for fields that take time to make."""
        return self._real().is_enabled_for(_DEBUG)

    def debug(self, event: str, **fields: object) -> None:
        """What is needed only to debug."""
        self._real().debug(event, **fields)

    def info(self, event: str, **fields: object) -> None:
        """What happens in normal work and is worth a line."""
        self._real().info(event, **fields)

    def warning(self, event: str, **fields: object) -> None:
        """What went wrong and recovers by itself."""
        self._real().warning(event, **fields)

    def error(self, event: str, **fields: object) -> None:
        """What went wrong and needs an administrator."""
        self._real().error(event, **fields)

    def exception(self, event: str, **fields: object) -> None:
        """An error with the traceback of the exception that is being handled."""
        self._real().error(event, exc_info=True, **fields)

    def _real(self) -> FilteringBoundLogger:
        if self._bound is None or self._number != _setup.number:
            if _setup.number == 0:
                configure()
            self._bound = _setup.lines().bound(self.name)
            self._number = _setup.number
        return self._bound


def logger(name: str) -> Logger:
    """The logger of one part of the program; the name is in every line."""
    return Logger(name)


def configure(
    *, verbosity: int = 0, format: Format = "text", stream: IO[str] | None = None
) -> None:
    """Configure once what is written, how, and where (stderr by default).

    ``verbosity`` 0 writes warnings and errors, 1 (``-v``) also what happens, 2 (``-vv``) also
    details, 3 (``-vvv``) also what asyncio and aiohttp log. A second call replaces the first.
    """
    _setup.configure(verbosity=verbosity, format=format, stream=stream)
