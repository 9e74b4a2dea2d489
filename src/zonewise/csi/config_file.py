"""The configuration file, read again when it changes.

Its content is looked at every second, not its inode: a ConfigMap is swapped by a link two folders
up, an editor replaces the file, and both are the same here. A file that is missing, half written
or wrong changes nothing: what was read last stays, and the fault is in the log, once.

A driver may start before its file exists where a ConfigMap is mounted, as an installation creates
an empty one: until then there are no pools, and nothing is known about takeover. Any other file
that is not there is a wrong path.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from zonewise.api.errors import ConfigError
from zonewise.runtime.process.logs import logger
from zonewise.storage.configuration import StorageConfiguration, parse_configuration
from zonewise.storage.domains import DomainLabels

POLL_SECONDS = 1.0
CONFIG_MAP_LINK = "..data"
"""What kubelets put beside the files of a ConfigMap, and of one without any: a link to them."""
SIZE_LIMIT = 4 << 20

_log = logger("csi")


class ConfigFile:
    """What a file says now, or said last; ``check`` refuses what a backend cannot use."""

    def __init__(
        self,
        path: Path,
        labels: DomainLabels,
        *,
        may_be_missing: bool = False,
        check: Callable[[StorageConfiguration], None] | None = None,
    ) -> None:
        self._path = path
        self._labels = labels
        self._check = check
        self._change_listeners: list[Callable[[StorageConfiguration], None]] = []
        self._status_listeners: list[Callable[[], None]] = []
        self._text = ""
        self.current = StorageConfiguration()
        self.problem: str | None = None
        self.loaded = not (may_be_missing and self._is_missing())
        if self.loaded:
            self._text = self._read()
            self.current = self._parse(self._text)
        else:
            _log.warning("the configuration is not there yet, so there are no pools", file=path)

    def on_change(self, listener: Callable[[StorageConfiguration], None]) -> None:
        """Call it with every further state of the file that can be used."""
        self._change_listeners.append(listener)

    def on_status_change(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call it after every change of what counts, or is wrong; until the answer is called."""
        self._status_listeners.append(listener)
        return lambda: self._status_listeners.remove(listener)

    async def run(self) -> None:
        """Look again, endlessly."""
        while True:
            await asyncio.sleep(POLL_SECONDS)
            self.reload()

    def reload(self) -> None:
        """Apply what the file says now, if it is valid."""
        if not self.loaded and self._is_missing():
            return
        try:
            text = self._read()
            if text == self._text and self.problem is None:
                return
            configuration = self._parse(text).inherit_takeover(self.current)
        except ConfigError as error:
            if self.problem != str(error):
                self.problem = str(error)
                _log.error("the configuration stays as it was", why=self.problem)
                self._notify()
            return
        recovered = self.problem is not None or not self.loaded
        self._text, self.problem, self.loaded = text, None, True
        if configuration != self.current:
            self.current = configuration
            for listener in self._change_listeners:
                listener(configuration)
            _log.info("the configuration was read again", pools=len(configuration.pools))
            self._notify()
        elif recovered:
            _log.info("the configuration can be read, and has not changed")
            self._notify()

    def _notify(self) -> None:
        for listener in tuple(self._status_listeners):
            listener()

    def _is_missing(self) -> bool:
        """Whether a file is missing in a mounted ConfigMap: a wrong path is another fault."""
        return self._path.parent.joinpath(CONFIG_MAP_LINK).is_dir() and not self._path.exists()

    def _read(self) -> str:
        try:
            with self._path.open("rb") as file:
                content = file.read(SIZE_LIMIT + 1)
            if len(content) > SIZE_LIMIT:
                raise ConfigError(f"--config {self._path} is larger than {SIZE_LIMIT >> 20} MiB")
            return content.decode()
        except OSError as error:
            raise ConfigError(f"--config {self._path} cannot be read: {error.strerror}") from None
        except UnicodeDecodeError:
            raise ConfigError(f"--config {self._path} is not UTF-8 text") from None

    def _parse(self, text: str) -> StorageConfiguration:
        try:
            configuration = parse_configuration(text, self._labels)
            if self._check is not None:
                self._check(configuration)
        except ConfigError as error:
            raise ConfigError(
                f"--config {self._path}: {error}; docs/csi.md shows the format"
            ) from None
        return configuration


def require_clusters(backend: str, configuration: StorageConfiguration) -> None:
    """Whether a driver on Ceph can use a configuration; raises ConfigError with one sentence."""
    if not configuration.clusters:
        raise ConfigError(f"--backend {backend} needs a Ceph cluster, and clusters names none")
    for cluster in configuration.clusters:
        for key, value in (
            ("monitors", cluster.monitors),
            ("user", cluster.user),
            ("keyFile", cluster.key_file),
        ):
            if not value:
                raise ConfigError(f"cluster {cluster.cluster_id} of the configuration has no {key}")


def require_keys(configuration: StorageConfiguration) -> None:
    """Whether the keys exist, checked only at the start; raises ConfigError with one sentence.

    Later a missing one affects its cluster only: takeovers are in the same file.
    """
    for cluster in configuration.clusters:
        if not Path(cluster.key_file).is_file():
            raise ConfigError(f"keyFile {cluster.key_file} of {cluster.cluster_id} is not there")
