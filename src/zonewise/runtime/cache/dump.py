"""Objects from files: what ``kubectl get … -o yaml`` and ``-o json`` print.

A dump is YAML with any number of documents, or one JSON value. ``List`` and ``PodList`` are
unpacked; what is inside a typed list gets its kind from the list. A typed list also says that its
kind was dumped, even if it is empty; a plain ``List``, which is what ``kubectl get`` prints, does
not. Nothing is decoded into types
here: JSON objects stay bytes and YAML objects stay plain values until a type is requested, so
reading a large dump costs only what is used of it. YAML is read as an API server reads it.

Errors are one sentence that begins with the file and the line. Lines of single objects are looked
up only when such a sentence is needed. They are found in the parser's events: its trees are built
recursively, and a file of brackets would overflow the stack.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, TypeVar

import msgspec
import yaml

from zonewise.api.codec import convert, decoder
from zonewise.api.errors import ConfigError, ParseError
from zonewise.api.meta import Object
from zonewise.api.struct import Struct
from zonewise.api.text import jsontext, yamltext
from zonewise.api.text.jsontext import DEPTH_LIMIT
from zonewise.api.unstructured import Unstructured

T = TypeVar("T", bound=Object | Unstructured)

KindKey: TypeAlias = tuple[str, str]
"""Group and kind."""

SIZE_LIMIT = 2 << 30
TOO_DEEP = (
    f"nested more than {DEPTH_LIMIT} levels deep, which no object is; give what kubectl get prints"
)
NO_LIST = "the items of this list are not a list; give what kubectl get … -o yaml or -o json prints"
SUFFIXES = frozenset({".yaml", ".yml", ".json"})

_SEPARATOR = re.compile(rb"^(?:---|\.\.\.)(?=[ \t\r\n]|$)[^\n]*\n?", re.MULTILINE)
_BOM = b"\xef\xbb\xbf"


class _Head(Struct):
    api_version: str = ""
    kind: str = ""


class _ListHead(Struct):
    api_version: str = ""
    kind: str = ""
    items: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


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
class DumpEntry:
    """One object of a dump, not yet of any type; ``index`` is that in a list, if it is in one."""

    api_version: str
    kind: str
    value: msgspec.Raw | dict[str, Any] = field(repr=False)
    document: Document
    index: int | None = None

    @property
    def group(self) -> str:
        """The API group, "" for the core group."""
        return self.api_version.rpartition("/")[0]

    @cached_property
    def line(self) -> int:
        """On which line of the file it begins."""
        look = _json_item if isinstance(self.value, msgspec.Raw) else _yaml_item
        return self.document.line + look(self.document.text, self.index)

    def typed(self, cls: type[T]) -> T:
        """The object as a class; errors name file and line."""
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

    def plain(self) -> dict[str, Any]:
        """The object as plain values, nested no deeper than an API server takes."""
        if not isinstance(self.value, msgspec.Raw):
            return self.value
        try:
            value: dict[str, Any] = jsontext.read(bytes(self.value))
        except ParseError:
            raise self.error(TOO_DEEP) from None
        return value

    def error(self, sentence: str) -> ConfigError:
        """A complaint about the object."""
        return self.document.error(sentence, line=self.line)


def read_file(path: str | Path, listed: set[KindKey] | None = None) -> list[DumpEntry]:
    """The objects in a file, or on the standard input if the path is ``-``.

    ``listed`` collects the kinds of its typed lists.
    """
    if str(path) == "-":
        return list(parse(sys.stdin.buffer.read(), "<stdin>", listed))
    try:
        with Path(path).open("rb") as file:
            data = file.read(SIZE_LIMIT + 1)
    except OSError as error:
        reason = (error.strerror or type(error).__name__).lower()
        raise ConfigError(f"cannot read {path}: {reason}") from error
    if len(data) > SIZE_LIMIT:
        raise ConfigError(f"{path} is larger than {SIZE_LIMIT >> 30} GiB; dump fewer kinds at once")
    return list(parse(data, str(path), listed))


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


def parse(data: bytes, source: str, listed: set[KindKey] | None = None) -> Iterator[DumpEntry]:
    """The objects in the text of a dump; ``listed`` collects the kinds of its typed lists."""
    data = data.removeprefix(_BOM)
    kinds = set[KindKey]() if listed is None else listed
    if data.lstrip()[:1] != b"{":
        for document in _yaml_documents(data, source):
            yield from _from_yaml(document, kinds)
    else:
        for document in _json_documents(data, source):
            yield from _from_json(document, kinds)


def _json_documents(data: bytes, source: str) -> Iterator[Document]:
    """One JSON value, or several one after the other, as appended dumps are."""
    try:
        msgspec.json.decode(data, type=msgspec.Raw)
    except (msgspec.DecodeError, RecursionError) as error:
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


def _from_json(document: Document, listed: set[KindKey]) -> Iterator[DumpEntry]:
    try:
        head = msgspec.json.decode(document.text, type=_ListHead)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        line = _json_line(error, document)
        raise document.error(f"not JSON: {_plain(error)}", line=line) from None
    if msgspec.UNSET is head.items or not head.kind.endswith("List"):
        yield _named(DumpEntry(head.api_version, head.kind, msgspec.Raw(document.text), document))
        return
    raws = _json_items(head.items, document)
    _list(head, listed)
    for index, raw in enumerate(raws):
        entry = DumpEntry(head.api_version, head.kind, raw, document, index)
        try:
            item = msgspec.json.decode(raw, type=_Head)
        except msgspec.ValidationError as error:
            raise entry.error(f"not an object: {_plain(error)}") from None
        except RecursionError:
            raise entry.error(TOO_DEEP) from None
        yield _named(_read_list_item(head, item, raw, document, index))


def _json_items(items: msgspec.Raw, document: Document) -> tuple[msgspec.Raw, ...]:
    """The items of a list, each as it is written; null is an empty list, as Go has it."""
    try:
        raw_items = msgspec.json.decode(items, type=tuple[msgspec.Raw, ...] | None)
    except msgspec.ValidationError:
        raise document.error(NO_LIST) from None
    return raw_items or ()


def _from_yaml(document: Document, listed: set[KindKey]) -> Iterator[DumpEntry]:
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
        yield _named(DumpEntry(head.api_version, head.kind, value, document))
        return
    if items is not None and not isinstance(items, list):
        raise document.error(NO_LIST)
    _list(head, listed)
    for index, item in enumerate(items or ()):
        if not isinstance(item, dict):
            entry = DumpEntry(head.api_version, head.kind, {}, document, index)
            raise entry.error("not an object")
        own = _Head(api_version=_text(item, "apiVersion"), kind=_text(item, "kind"))
        yield _named(_read_list_item(head, own, item, document, index))


def _list(head: _Head | _ListHead, listed: set[KindKey]) -> None:
    if head.kind != "List":
        listed.add((head.api_version.rpartition("/")[0], head.kind.removesuffix("List")))


def _read_list_item(
    head: _Head | _ListHead,
    item: _Head,
    value: msgspec.Raw | dict[str, Any],
    document: Document,
    index: int,
) -> DumpEntry:
    """An item of a list; in a typed list it may leave its kind to the list."""
    kind = item.kind or head.kind.removesuffix("List")
    version = item.api_version or (head.api_version if head.kind != "List" else "")
    return DumpEntry(version, kind, value, document, index)


def _named(entry: DumpEntry) -> DumpEntry:
    if not entry.kind or not entry.api_version:
        raise entry.error(
            "no apiVersion and kind; give what kubectl get … -o yaml or -o json prints"
        )
    return entry


def _text(value: dict[str, Any], name: str) -> str:
    text = value.get(name)
    return text if isinstance(text, str) else ""


def _plain(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return TOO_DEEP
    return re.sub(r"\s*\(byte \d+\)$", "", str(error))


def _json_line(error: Exception, document: Document) -> int:
    position = re.search(r"\(byte (\d+)\)$", str(error))
    end = int(position.group(1)) if position else len(document.text)
    return document.line + document.text.count(b"\n", 0, end)


def _not_yaml(document: Document, error: ParseError) -> ConfigError:
    """The error with the place at which the parser itself gave up."""
    try:
        for event in _events(document.text):
            if event.depth > DEPTH_LIMIT:
                return document.error(f"not YAML: {TOO_DEEP}", line=document.line + event.line)
    except yaml.MarkedYAMLError as marked:
        mark = marked.problem_mark or marked.context_mark
        line = document.line + (mark.line if mark else 0)
        return document.error(f"not YAML: {marked.problem or 'malformed'}", line=line)
    except (yaml.YAMLError, UnicodeDecodeError):
        return document.error("not YAML: it has bytes that are not text")
    return document.error(f"not YAML: {str(error).removeprefix('yaml: ')}")


def _json_item(text: bytes, index: int | None) -> int:
    """How many lines are before an item of a list."""
    if index is None:
        return 0
    listed = msgspec.json.decode(text, type=_ListHead).items
    assert isinstance(listed, msgspec.Raw)
    items = msgspec.json.decode(listed, type=tuple[msgspec.Raw, ...])
    position = text.index(b'"items"') + len(b'"items"')
    for raw in items[:index]:
        position = text.index(bytes(raw), position) + len(bytes(raw))
    return text.count(b"\n", 0, text.index(bytes(items[index]), position))


class _Event(NamedTuple):
    """The beginning of a value: how deep inside others it is, its text if it is one, its line."""

    depth: int
    text: str | None
    line: int


def _events(text: bytes) -> Iterator[_Event]:
    depth = 0
    for event in yaml.parse(text, Loader=yaml.CSafeLoader):
        if isinstance(event, yaml.NodeEvent):
            scalar = event.value if isinstance(event, yaml.ScalarEvent) else None
            yield _Event(depth, scalar, event.start_mark.line if event.start_mark else 0)
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1


def _yaml_item(text: bytes, index: int | None) -> int:
    """How many lines are before an item of a list."""
    events = _events(text)
    first = next(events, None)
    if index is None or first is None:
        return 0 if first is None else first.line
    members = at = 0
    inside = False
    for event in events:
        if event.depth == 1:
            # Names and values alternate; a name says what the value after it is.
            if members % 2 == 0:
                inside = event.text == "items"
            members += 1
        elif event.depth == 2 and inside:
            if at == index:
                return event.line
            at += 1
    return 0


def by_kind(entries: Iterable[DumpEntry]) -> dict[KindKey, list[DumpEntry]]:
    """Entries by group and kind."""
    result: dict[KindKey, list[DumpEntry]] = {}
    for entry in entries:
        result.setdefault((entry.group, entry.kind), []).append(entry)
    return result
