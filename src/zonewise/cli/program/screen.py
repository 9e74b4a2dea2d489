"""What every command prints through.

``screened`` puts itself before stdout and stderr while a command runs: whatever is written, by us,
by click, by a logger or with a traceback, reaches a terminal without control sequences. Only our
own colours are allowed, so only ``console`` bypasses it, and it cleans the words between the
colours. No command has to take care of this, so a new one is safe from the start.

Tables clean their cells once more before they measure them. JSON and YAML keep their values:
control characters are escaped in their own way (``rendered``).

Help and completion print nothing but our own words, so what cleans words is loaded at the first
one that needs it.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Any, TextIO, cast

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

WIDTH = 100


class Screen(io.TextIOBase):
    """A text stream before another one that lets only printable text through."""

    # Ours, not that of the stream beneath: a caller would otherwise bypass us.
    encoding = "utf-8"
    errors = "strict"

    def __init__(self, beneath: TextIO) -> None:
        self.beneath = beneath
        self.buffer = _Bytes(self)

    def write(self, text: str) -> int:
        """Write what a terminal may get."""
        if not isinstance(text, str):
            raise TypeError(f"text is written here, not {type(text).__name__}")
        shown = text if text.isprintable() else _cleaned(text)
        encoding = self.beneath.encoding or "utf-8"
        self.beneath.write(shown.encode(encoding, "backslashreplace").decode(encoding))
        return len(text)

    def flush(self) -> None:
        """Hand on what is beneath."""
        self.beneath.flush()

    def isatty(self) -> bool:
        """Whether a terminal is beneath."""
        return self.beneath.isatty()

    def fileno(self) -> int:
        """The descriptor beneath."""
        return self.beneath.fileno()

    def writable(self) -> bool:
        """Yes."""
        return True


def _cleaned(text: str) -> str:
    if text.replace("\n", "").replace("\t", "").isprintable():
        return text
    from zonewise.api.values.printable import escape_unprintable

    return escape_unprintable(text, keep_lines=True)


class _Bytes(io.BufferedIOBase):
    """The bytes' way in, which leads through the screen as well."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen

    def write(self, data: Any) -> int:
        """Write text that is encoded already."""
        if isinstance(data, str):
            raise TypeError("bytes are written here, not str")
        self._screen.write(bytes(data).decode("utf-8", "backslashreplace"))
        return len(data)

    def writable(self) -> bool:
        """Yes."""
        return True


@contextmanager
def screened() -> Iterator[None]:
    """Let everything that is printed meanwhile go through a screen."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (
        cast("TextIO", stream if stream is None else Screen(stream)) for stream in before
    )
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


def console() -> Console:
    """Where pages are printed; a file or a pipe gets lines wide enough for them."""
    from rich.console import Console
    from rich.segment import Segment

    class Printed(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError  # rich would end the program with a code of its own

        def _render_buffer(self, buffer: Iterable[Segment]) -> str:
            return super()._render_buffer(map(_clean, buffer))

    def _clean(segment: Segment) -> Segment:
        if segment.control or segment.text.isprintable():
            return segment
        return segment._replace(text=_cleaned(segment.text))

    out: IO[str] = sys.stdout.beneath if isinstance(sys.stdout, Screen) else sys.stdout
    found = Printed(file=out, highlight=False)
    return found if found.is_terminal else Printed(file=out, highlight=False, width=WIDTH)


def cell(text: str) -> Text:
    """Words of others in a table: shown as they are, never read as markup."""
    from rich.text import Text

    from zonewise.api.values.printable import escape_unprintable

    return Text(escape_unprintable(text))


def is_plain(output: str | None) -> bool:
    """Whether a program reads the output, not a person."""
    return output not in (None, "table")


def rendered(value: Any, output: str | None, *, following: bool = False) -> str:
    """A value as JSON or YAML; ``following`` others of its kind, as a line or a document."""
    import msgspec

    from zonewise.api.values.printable import escape_unprintable_json

    text = msgspec.json.encode(value)
    if output == "yaml":
        import yaml

        # Parts that occur twice would be written as references to each other.
        apart = msgspec.json.decode(text)
        plain = text.decode().isprintable()
        return yaml.safe_dump(
            apart, sort_keys=False, allow_unicode=plain, explicit_start=following
        ).rstrip("\n")
    lines = following or output == "jsonl"
    return escape_unprintable_json(
        (text if lines else msgspec.json.format(text, indent=2)).decode()
    )
