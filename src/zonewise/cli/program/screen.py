"""The output of every command, without control characters.

``screen_output`` replaces stdout and stderr while a command runs: whatever is written, by us, by
click, by a logger or with a traceback, reaches a terminal without control sequences. Only our own
colours are allowed, so only ``make_console`` bypasses it, and it cleans the text between the
colours. Commands need not take care of this.

Tables clean their cells once more before they measure them. JSON and YAML keep their values:
control characters are escaped as the format requires (``render``).

Help and completion print only our own text, so the module that cleans text is imported when it is
first needed.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Any, TextIO, cast

import click

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

WIDTH = 100


class Screen(io.TextIOBase):
    """A text stream that passes only printable text on to the stream beneath."""

    # Ours, not that of the stream beneath: a caller would otherwise bypass us.
    encoding = "utf-8"
    errors = "strict"

    def __init__(self, beneath: TextIO) -> None:
        self.beneath = beneath
        self.buffer = _Bytes(self)

    def write(self, text: str) -> int:
        """Write the text, with control characters escaped."""
        if not isinstance(text, str):
            raise TypeError(f"write() takes str, not {type(text).__name__}")
        clean = text if text.isprintable() else _clean(text)
        encoding = self.beneath.encoding or "utf-8"
        self.beneath.write(clean.encode(encoding, "backslashreplace").decode(encoding))
        return len(text)

    def flush(self) -> None:
        """Flush the stream beneath."""
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


def _clean(text: str) -> str:
    if text.replace("\n", "").replace("\t", "").isprintable():
        return text
    from zonewise.api.values.printable import escape_unprintable

    return escape_unprintable(text, keep_lines=True)


class _Bytes(io.BufferedIOBase):
    """The byte stream of a ``Screen``: what is written to it is cleaned as well."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen

    def write(self, data: Any) -> int:
        """Write encoded text."""
        if isinstance(data, str):
            raise TypeError("write() takes bytes, not str")
        self._screen.write(bytes(data).decode("utf-8", "backslashreplace"))
        return len(data)

    def writable(self) -> bool:
        """Yes."""
        return True


@contextmanager
def screen_output() -> Iterator[None]:
    """Clean everything that is printed meanwhile."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (
        cast("TextIO", stream if stream is None else Screen(stream)) for stream in before
    )
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


def make_console() -> Console:
    """A console for pages; a file or a pipe gets lines wide enough for them."""
    from rich.console import Console
    from rich.segment import Segment

    class CleanConsole(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError  # rich would end the program with a code of its own

        def _render_buffer(self, buffer: Iterable[Segment]) -> str:
            return super()._render_buffer(map(_clean_segment, buffer))

    def _clean_segment(segment: Segment) -> Segment:
        if segment.control or segment.text.isprintable():
            return segment
        return segment._replace(text=_clean(segment.text))

    out: IO[str] = sys.stdout.beneath if isinstance(sys.stdout, Screen) else sys.stdout
    console = CleanConsole(file=out, highlight=False)
    return console if console.is_terminal else CleanConsole(file=out, highlight=False, width=WIDTH)


def clean_cell(text: str) -> Text:
    """Text of others for a table: without control characters, and never read as markup."""
    from rich.text import Text

    from zonewise.api.values.printable import escape_unprintable

    return Text(escape_unprintable(text))


def join_some(names: Sequence[str], most: int) -> str:
    """The first names, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def is_plain(output: str | None) -> bool:
    """Whether a program reads the output, not a person."""
    return output not in (None, "table")


def render(value: Any, output: str | None, *, following: bool = False) -> str:
    """A value as JSON or YAML; ``following`` others, as a line or a document of its own."""
    import msgspec

    from zonewise.api.values.printable import escape_unprintable_json

    text = msgspec.json.encode(value)
    if output == "yaml":
        import yaml

        # Decoded again: YAML would write an object that occurs twice as a reference.
        copied = msgspec.json.decode(text)
        plain = text.decode().isprintable()
        return yaml.safe_dump(
            copied, sort_keys=False, allow_unicode=plain, explicit_start=following
        ).rstrip("\n")
    if not following and output != "jsonl":
        text = msgspec.json.format(text, indent=2)
    return escape_unprintable_json(text.decode())


def make_row(file: str, fields: dict[str, Any]) -> dict[str, Any]:
    """The fields of a report; those from a dump begin with the name of its file."""
    return {"file": file, **fields} if file else fields


def print_rows(rows: Iterable[dict[str, Any]], output: str | None) -> None:
    """Print rows as JSON or YAML: each on a line of its own as ``jsonl``, else as one list."""
    if output == "jsonl":
        for row in rows:
            click.echo(render(row, output))
    else:
        click.echo(render(list(rows), output))
