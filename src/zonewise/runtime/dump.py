"""Objects out of files: what ``kubectl get … -o yaml`` and ``-o json`` print.

A dump is YAML with any number of documents, or one JSON value. ``List`` and ``PodList`` are
unpacked; what is inside a typed list gets its kind from the list. Nothing is decoded into types
here: JSON objects stay bytes and YAML objects stay plain values until somebody asks for a type, so
reading a large dump costs what is used of it. YAML is read as an API server reads it.

Errors are one sentence that begins with the file and the line. Lines of single objects are looked
up only when such a sentence is needed.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import yaml

from zonewise.api import yamltext
from zonewise.api.codec import convert, decoder
from zonewise.api.errors import ConfigError, ParseError
from zonewise.api.meta import Object
from zonewise.api.struct import Struct
from zonewise.api.unstructured import Unstructured

T = TypeVar("T", bound=Object | Unstructured)

SIZE_LIMIT = 2 << 30
SUFFIXES = frozenset({".yaml", ".yml", ".json"})

_SEPARATOR = re.compile(rb"^(?:---|\.\.\.)(?=[ \t\r\n]|$)[^\n]*\n?", re.MULTILINE)
_BOM = b"\xef\xbb\xbf"


class _Head(Struct):
    api_version: str = ""
    kind: str = ""


class _ListHead(Struct):
    api_version: str = ""
    kind: str = ""
    items: tuple[msgspec.Raw, ...] | msgspec.UnsetType | None = msgspec.UNSET


@dataclass(frozen=True, slots=True)
class Document:
    """One document of a file: its text, and on which line of which file it begins."""

    source: str
    text: bytes = field(repr=False)
    line: int = 1

    def error(self, sentence: str, *, line: int | None = None) -> ConfigError:
        """A complaint about a place in it."""
        return ConfigError(f"{self.source}:{self.line if line is None else line}: {sentence}")


@dataclass(frozen=True)
class Entry:
    """One object of a dump, not yet of any type; ``place`` is its position in a list, if in one."""

    api_version: str
    kind: str
    value: msgspec.Raw | dict[str, Any] = field(repr=False)
    document: Document
    place: int | None = None

    @property
    def group(self) -> str:
        """The API group, "" for the core group."""
        return self.api_version.rpartition("/")[0]

    @cached_property
    def line(self) -> int:
        """On which line of the file it begins."""
        look = _json_item if isinstance(self.value, msgspec.Raw) else _yaml_item
        return self.document.line + look(self.document.text, self.place)

    def typed(self, cls: type[T]) -> T:
        """The object as a class; what does not fit is told with file and line."""
        version = cls.resource.api_version
        if self.api_version != version:
            raise self.error(
                f"this {self.kind} is {self.api_version}, which is not read; "
                f"dump it as {version} with kubectl get "
                f"{cls.resource.plural}.{cls.resource.version}.{cls.resource.group}".rstrip(".")
            )
        try:
            if isinstance(self.value, msgspec.Raw):
                item = decoder(cls).decode(self.value)
            else:
                item = convert(cls, self.value)
            named = bool(item.metadata.name)
        except ParseError as error:
            raise self.error(str(error)) from error
        if not named:
            raise self.error(f"this {self.kind} has no name")
        return item

    def error(self, sentence: str) -> ConfigError:
        """A complaint about the object."""
        return self.document.error(sentence, line=self.line)


def read_file(path: str | Path) -> list[Entry]:
    """The objects in a file, or on the standard input if the path is ``-``."""
    if str(path) == "-":
        return list(parse(sys.stdin.buffer.read(), "<stdin>"))
    try:
        with Path(path).open("rb") as file:
            data = file.read(SIZE_LIMIT + 1)
    except OSError as error:
        reason = (error.strerror or type(error).__name__).lower()
        raise ConfigError(f"cannot read {path}: {reason}") from error
    if len(data) > SIZE_LIMIT:
        raise ConfigError(f"{path} is larger than {SIZE_LIMIT >> 30} GiB; dump fewer kinds at once")
    return list(parse(data, str(path)))


def files_of(folder: Path) -> list[Path]:
    """The dumps in a folder, by name."""
    try:
        files = sorted(path for path in folder.iterdir() if path.suffix in SUFFIXES)
    except OSError as error:
        reason = (error.strerror or type(error).__name__).lower()
        raise ConfigError(f"cannot read the folder {folder}: {reason}") from error
    files = [path for path in files if not path.name.startswith(".") and path.is_file()]
    if not files:
        raise ConfigError(f"no .yaml, .yml or .json file in the folder {folder}")
    return files


def parse(data: bytes, source: str) -> Iterator[Entry]:
    """The objects in the text of a dump."""
    data = data.removeprefix(_BOM)
    if data.lstrip()[:1] != b"{":
        for document in _yaml_documents(data, source):
            yield from _from_yaml(document)
    else:
        for document in _json_documents(data, source):
            yield from _from_json(document)


def _json_documents(data: bytes, source: str) -> Iterator[Document]:
    """One JSON value, or several one after the other, as appended dumps are."""
    try:
        msgspec.json.decode(data, type=msgspec.Raw)
    except msgspec.DecodeError as error:
        if "trailing characters" in str(error):
            yield from _json_stream(data, source)
            return
    yield Document(source, data)


def _json_stream(data: bytes, source: str) -> Iterator[Document]:
    text = data.decode("utf-8", "replace")
    scan = json.JSONDecoder().raw_decode
    start, line = 0, 1
    while start < len(text):
        begin = start + len(text[start:]) - len(text[start:].lstrip())
        line += text.count("\n", start, begin)
        if begin == len(text):
            return
        try:
            _, end = scan(text, begin)
        except (ValueError, RecursionError):
            end = len(text)
        yield Document(source, text[begin:end].encode(), line)
        line += text.count("\n", begin, end)
        start = end


def _yaml_documents(data: bytes, source: str) -> Iterator[Document]:
    start = line = 0
    for mark in _SEPARATOR.finditer(data):
        if data[start : mark.start()].strip():
            yield Document(source, data[start : mark.start()], line + 1)
        line += data.count(b"\n", start, mark.end())
        # What follows the marker on its line belongs to the document: "--- {kind: Node}".
        start = mark.end()
        rest = mark.group()[3:]
        if rest.strip() and not rest.lstrip().startswith(b"#"):
            start = mark.start() + 3
            line -= rest.count(b"\n")
    if data[start:].strip():
        yield Document(source, data[start:], line + 1)


def _from_json(document: Document) -> Iterator[Entry]:
    try:
        head = msgspec.json.decode(document.text, type=_ListHead)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        line = _json_line(error, document)
        raise document.error(f"not JSON: {_plain(error)}", line=line) from None
    if msgspec.UNSET is head.items or not head.kind.endswith("List"):
        yield _named(Entry(head.api_version, head.kind, msgspec.Raw(document.text), document))
        return
    for place, raw in enumerate(head.items or ()):
        entry = Entry(head.api_version, head.kind, raw, document, place)
        try:
            item = msgspec.json.decode(raw, type=_Head)
        except msgspec.ValidationError as error:
            raise entry.error(f"not an object: {_plain(error)}") from None
        yield _named(_inside(head, item, raw, document, place))


def _from_yaml(document: Document) -> Iterator[Entry]:
    try:
        value = yamltext.read(document.text).value
    except ParseError as error:
        raise _not_yaml(document, error) from None
    if value is None:
        return
    if not isinstance(value, dict):
        raise document.error(
            "not a Kubernetes object; give what kubectl get … -o yaml or -o json prints"
        )
    head = _Head(api_version=_text(value, "apiVersion"), kind=_text(value, "kind"))
    items = value.get("items", msgspec.UNSET)
    if msgspec.UNSET is items or not head.kind.endswith("List"):
        yield _named(Entry(head.api_version, head.kind, value, document))
        return
    for place, item in enumerate(items if isinstance(items, list) else ()):
        if not isinstance(item, dict):
            entry = Entry(head.api_version, head.kind, {}, document, place)
            raise entry.error("not an object")
        own = _Head(api_version=_text(item, "apiVersion"), kind=_text(item, "kind"))
        yield _named(_inside(head, own, item, document, place))


def _inside(
    head: _Head | _ListHead,
    item: _Head,
    value: msgspec.Raw | dict[str, Any],
    document: Document,
    place: int,
) -> Entry:
    """An item of a list; in a typed list it may leave its kind to the list."""
    kind = item.kind or head.kind.removesuffix("List")
    version = item.api_version or (head.api_version if head.kind != "List" else "")
    return Entry(version, kind, value, document, place)


def _named(entry: Entry) -> Entry:
    if not entry.kind or not entry.api_version:
        raise entry.error(
            "no apiVersion and kind; give what kubectl get … -o yaml or -o json prints"
        )
    return entry


def _text(value: dict[str, Any], name: str) -> str:
    text = value.get(name)
    return text if isinstance(text, str) else ""


def _plain(error: Exception) -> str:
    return re.sub(r"\s*\(byte \d+\)$", "", str(error)) or "nested too deeply"


def _json_line(error: Exception, document: Document) -> int:
    place = re.search(r"\(byte (\d+)\)$", str(error))
    end = int(place.group(1)) if place else len(document.text)
    return document.line + document.text.count(b"\n", 0, end)


def _not_yaml(document: Document, error: ParseError) -> ConfigError:
    """The error with the place at which the parser itself gave up."""
    try:
        yaml.compose(document.text, Loader=yaml.CSafeLoader)
    except yaml.MarkedYAMLError as marked:
        mark = marked.problem_mark or marked.context_mark
        line = document.line + (mark.line if mark else 0)
        return document.error(f"not YAML: {marked.problem or 'malformed'}", line=line)
    except (yaml.YAMLError, UnicodeDecodeError):
        return document.error("not YAML: it has bytes that are no text")
    return document.error(f"not YAML: {str(error).removeprefix('yaml: ')}")


def _json_item(text: bytes, place: int | None) -> int:
    """How many lines are before an item of a list."""
    if place is None:
        return 0
    items = msgspec.json.decode(text, type=_ListHead).items
    assert isinstance(items, tuple)
    position = text.index(b'"items"') + len(b'"items"')
    for raw in items[:place]:
        position = text.index(bytes(raw), position) + len(bytes(raw))
    return text.count(b"\n", 0, text.index(bytes(items[place]), position))


def _yaml_item(text: bytes, place: int | None) -> int:
    """How many lines are before an item of a list."""
    node = yaml.compose(text, Loader=yaml.CSafeLoader)
    if place is None or not isinstance(node, yaml.MappingNode):
        return int(node.start_mark.line) if node is not None else 0
    for name, value in node.value:
        if name.value == "items" and isinstance(value, yaml.SequenceNode):
            return int(value.value[place].start_mark.line)
    return 0


def by_kind(entries: Iterable[Entry]) -> dict[tuple[str, str], list[Entry]]:
    """Entries by group and kind."""
    result: dict[tuple[str, str], list[Entry]] = {}
    for entry in entries:
        result.setdefault((entry.group, entry.kind), []).append(entry)
    return result
