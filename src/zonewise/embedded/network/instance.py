"""The network namespaces of one cluster: their names, and that none is left behind.

A cluster has a file in ``FOLDER`` that it keeps locked as long as it runs, and writes the name of
each namespace there before it makes it. A file without a lock is of a program that was killed: what
is named in it is removed, by the next one that starts. Nothing else ever is. Several clusters may
run at once; the first has the plain prefix, another one a number in it, and a prefix under which
another program has namespaces is left alone.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path

from zonewise.api.errors import ConfigError
from zonewise.embedded.leftovers.record import lock_record
from zonewise.proxy.netlink import NetworkNamespace
from zonewise.proxy.netlink.namespace import FOLDER as NAMESPACES
from zonewise.proxy.tables.kernel import Kernel
from zonewise.runtime.process.logs import logger

FOLDER = Path("/run/zonewise/network")
MOST = 100
_PREFIX = "zonewise"
_NAME_LIMIT = 200
_SETTINGS = {
    "ipv4/ip_forward": "1",
    "ipv6/conf/all/forwarding": "1",
    "ipv4/conf/all/rp_filter": "0",
    "ipv4/conf/default/rp_filter": "0",
}
_PACKAGES = {"ip": "iproute2", "nft": "nftables"}


_log = logger("network")


class IpFailed(ConfigError):
    """The program ``ip`` failed."""


class Instance:
    """The namespaces of a running cluster; ``claim`` makes one."""

    def __init__(self, prefix: str, record: int, path: Path) -> None:
        self._prefix = prefix
        self._record = record
        self._path = path
        self._names: set[str] = set()

    @classmethod
    def claim(cls) -> Instance:
        """A free prefix; ``ConfigError`` says why there can be no network here."""
        if os.geteuid() != 0:
            raise ConfigError("network namespaces need root")
        for program, package in _PACKAGES.items():
            if shutil.which(program) is None:
                raise ConfigError(f"there is no program {program}; install {package}")
        remove_stale()
        for number in range(1, MOST):
            prefix = _PREFIX if number == 1 else f"{_PREFIX}{number}"
            path = FOLDER / prefix
            record = lock_record(path, create=True)
            if record is None:
                continue
            if _taken(prefix):
                path.unlink()
                os.close(record)
                continue
            made = cls(prefix, record, path)
            try:
                made.add([made.fabric])
                Kernel({}, made.fabric).close()
            except BaseException:
                made.close()
                raise
            return made
        raise ConfigError(f"there are {MOST - 1} clusters with networks already")

    @property
    def fabric(self) -> NetworkNamespace:
        """What joins the nodes; seen from them it is the outside."""
        return NetworkNamespace(self._prefix)

    def node(self, name: str) -> NetworkNamespace:
        """The namespace of a node."""
        full = f"{self._prefix}-{name}"
        if len(full) > _NAME_LIMIT:
            digest = hashlib.sha256(name.encode()).hexdigest()[:12]
            full = f"{full[: _NAME_LIMIT - 13]}-{digest}"
        return NetworkNamespace(full)

    def add(self, namespaces: Iterable[NetworkNamespace]) -> None:
        """Make namespaces."""
        names = [one.name for one in namespaces]
        fresh = [name for name in names if name not in self._names]
        if fresh:
            os.write(self._record, "".join(f"{name}\n" for name in fresh).encode())
            self._names.update(fresh)
        run_ip([f"netns add {name}" for name in names])
        for name in names:
            _forward(NetworkNamespace(name))

    def remove(self, namespaces: Iterable[NetworkNamespace]) -> None:
        """Take namespaces away, and everything in them."""
        _remove(one.name for one in namespaces)

    def close(self) -> None:
        """Take all of them away; what cannot go now is tried by the next program that starts."""
        try:
            _remove(self._names)
            self._path.unlink(missing_ok=True)
        except IpFailed as error:
            _log.warning("a network namespace is left", error=str(error))
        finally:
            os.close(self._record)


def remove_stale() -> None:
    """Remove namespaces of clusters whose program was killed."""
    if not FOLDER.is_dir():
        return
    for path in sorted(FOLDER.iterdir()):
        record = lock_record(path, create=False)
        if record is not None:
            _remove(path.read_text().splitlines())
            path.unlink()
            os.close(record)


def _forward(namespace: NetworkNamespace) -> None:
    """Have the kernel forward packets there."""
    try:
        with namespace.entered():
            for path, value in _SETTINGS.items():
                Path("/proc/sys/net", path).write_text(value)
    except OSError as error:
        raise ConfigError(f"packets cannot be forwarded here: {error.strerror}") from error


def run_ip(commands: Sequence[str], namespace: NetworkNamespace | None = None) -> None:
    """Have ``ip`` do all of it, in order; what fails does not keep it from the rest."""
    if not commands:
        return
    where = ("-n", namespace.name) if namespace is not None else ()
    done = subprocess.run(
        ["ip", *where, "-force", "-batch", "-"],
        input="\n".join(commands),
        text=True,
        check=False,
        capture_output=True,
    )
    if done.returncode:
        said = done.stderr.strip().splitlines()
        why = said[0] if said else f"exit {done.returncode}"
        line = re.search(r"Command failed -:(\d+)", done.stderr)
        which = f" {commands[int(line[1]) - 1]}" if line else ""
        raise IpFailed(f"ip{which}: {why}")


def _remove(names: Iterable[str]) -> None:
    run_ip([f"netns del {name}" for name in sorted(names) if (NAMESPACES / name).exists()])


def _taken(prefix: str) -> bool:
    names = (path.name for path in NAMESPACES.iterdir()) if NAMESPACES.is_dir() else ()
    return any(name == prefix or name.startswith(f"{prefix}-") for name in names)
