"""A hand-written YAML file, read field by field, every fault named by file, entry and field.

All scalars are the text that is in the file: YAML would make a number of the token ``0123`` and a
boolean of the namespace ``no``. Only null and merge keys keep their YAML meaning. Where real types
are needed (``load_plain``), the file is read a second time.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Mapping
from pathlib import Path

import yaml

from zonewise.api.errors import ConfigError
from zonewise.runtime.config.credentials import reason

FILE_LIMIT = 10 << 20
DEPTH_LIMIT = 100

_RESOLVED_TAGS = frozenset({"tag:yaml.org,2002:null", "tag:yaml.org,2002:merge"})


class _TextLoader(yaml.CSafeLoader):
    """Reads every scalar but null as text."""


_TextLoader.yaml_implicit_resolvers = {
    first: [pair for pair in resolvers if pair[0] in _RESOLVED_TAGS]
    for first, resolvers in yaml.CSafeLoader.yaml_implicit_resolvers.items()
}


class Fields:
    """A mapping of a YAML file. Missing and null values are empty, whatever their type."""

    def __init__(self, values: Mapping[object, object], *, file: Path, title: str) -> None:
        self._values = values
        self._title = title
        self.file = file

    def __iter__(self) -> Iterator[str]:
        return (str(key) for key in self._values)

    def __bool__(self) -> bool:
        return bool(self._values)

    def wrong(self, key: str, fault: str) -> ConfigError:
        """The error for a field; the fault says what to do about it."""
        title = f"{self._title}: " if self._title else ""
        return ConfigError(f"{self.file}: {title}{key} {fault}")

    def text(self, key: str) -> str:
        """Text, exactly as it is."""
        value = self._values.get(key)
        if value is None:
            return ""
        if not isinstance(value, str):
            raise self.wrong(key, f"must be text, not {_kind(value)}; correct it")
        return value

    def word(self, key: str) -> str:
        """Text without the space around it, which a stray line break of an editor may be."""
        return self.text(key).strip()

    def flag(self, key: str) -> bool:
        """True or false; false if missing."""
        value = self.word(key).lower()
        if value not in ("", "true", "false"):
            raise self.wrong(key, f'must be true or false, not "{value[:40]}"; correct it')
        return value == "true"

    def path(self, key: str) -> Path | None:
        """A path, relative to the file it is in."""
        value = self.word(key)
        if "\0" in value:
            raise self.wrong(key, "is not a path; correct it")
        return (self.file.parent / value).absolute() if value else None

    def data(self, key: str) -> bytes | None:
        """Bytes that are written in base64."""
        value = self.word(key)
        if not value:
            return None
        try:
            return base64.b64decode("".join(value.split()), validate=True)
        except (binascii.Error, ValueError):
            raise self.wrong(key, "is not base64; copy it again, whole and unchanged") from None

    def data_or_path(self, key: str) -> bytes | Path | None:
        """The bytes of ``key-data`` if it is set, else the path ``key``."""
        data = self.data(f"{key}-data")
        return self.path(key) if data is None else data

    def texts(self, key: str) -> tuple[str, ...]:
        """A list of texts."""
        value = self._values.get(key)
        if value is None:
            return ()
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self.wrong(key, "must be a list of texts; correct it")
        return tuple(value)

    def mapping(self, key: str, *, title: str | None = None) -> Fields:
        """A mapping; ``title`` is what its own faults call it."""
        value = self._values.get(key)
        if value is None:
            value = {}
        if not isinstance(value, dict):
            raise self.wrong(key, f"must be a mapping, not {_kind(value)}; correct it")
        if title is None:
            title = f"{self._title}: {key}" if self._title else key
        return Fields(value, file=self.file, title=title)

    def entries(self, key: str) -> list[Fields]:
        """A list of mappings."""
        value = self._values.get(key)
        if value is None:
            return []
        if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
            raise self.wrong(key, f"must be a list of mappings, not {_kind(value)}; correct it")
        items = enumerate(value)
        return [Fields(item, file=self.file, title=f"{key}[{index}]") for index, item in items]


def load_fields(path: Path) -> Fields | None:
    """The mapping a file holds, or None if there is no such file."""
    content = _parse(path, _TextLoader)
    if content is _MISSING:
        return None
    if content is None:
        content = {}
    if not isinstance(content, dict):
        raise ConfigError(
            f"{path} is not a kubeconfig but {_kind(content)}; give a kubeconfig file"
        )
    return Fields(content, file=path, title="")


def load_plain(path: Path) -> object:
    """The same file with the types YAML gives."""
    content = _parse(path, yaml.CSafeLoader)
    return None if content is _MISSING else content


_MISSING = object()


def _parse(path: Path, loader: type[yaml.CSafeLoader]) -> object:
    try:
        with path.open("rb") as file:
            text = file.read(FILE_LIMIT + 1)
    except (FileNotFoundError, NotADirectoryError):
        return _MISSING
    except IsADirectoryError:
        raise ConfigError(f"{path} is a directory; give a kubeconfig file") from None
    except (OSError, ValueError) as error:
        why = reason(error) if isinstance(error, OSError) else "it is not a path"
        raise ConfigError(
            f"cannot read the kubeconfig {path}: {why}; make it readable or name another"
        ) from error
    if len(text) > FILE_LIMIT:
        raise ConfigError(f"{path} is too large for a kubeconfig; give a kubeconfig file")
    try:
        _check_depth(text)
        parser = loader(text)
        try:
            content: object = parser.get_single_data()
        finally:
            parser.dispose()
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        line = f" in line {mark.line + 1}" if mark is not None else ""
        raise ConfigError(
            f"{path} is not YAML{line}; correct it or give another kubeconfig file"
        ) from error
    return content


def _check_depth(text: bytes) -> None:
    # The C composer recurses without a bound: a file of brackets would end the process.
    depth = 0
    for event in yaml.parse(text, Loader=yaml.CSafeLoader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > DEPTH_LIMIT:
                raise yaml.YAMLError("nested too deeply")
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1


def _kind(value: object) -> str:
    if isinstance(value, dict):
        return "a mapping"
    return "a list" if isinstance(value, list) else "a text"
