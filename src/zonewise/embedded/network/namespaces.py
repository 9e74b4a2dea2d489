"""The network namespaces of one cluster: their names, and their removal after a kill.

A cluster has a file in ``RECORDS`` that it locks as long as it runs, and writes the name of each
namespace there before it creates it. A file without a lock is of a program that was killed: the
namespaces named in it are removed by the next program that starts. No others ever are. Several
clusters may run at once; the first has the plain prefix, another one a number in it, and a prefix
under which another program has namespaces is not used.
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
from zonewise.proxy.netlink.namespace import FOLDER as NAMESPACES
from zonewise.proxy.netlink.namespace import NetworkNamespace
from zonewise.proxy.tables.kernel import Kernel
from zonewise.runtime.process.logs import logger

RECORDS = Path("/run/zonewise/network")
MAX_CLUSTERS = 100
_PREFIX = "zonewise"
_NAME_LIMIT = 200
_FORWARDING = {
    "ipv4/ip_forward": "1",
    "ipv6/conf/all/forwarding": "1",
    "ipv4/conf/all/rp_filter": "0",
    "ipv4/conf/default/rp_filter": "0",
}
_PACKAGES = {"ip": "iproute2", "nft": "nftables"}


_log = logger("network")


class IpFailed(ConfigError):
    """The program ``ip`` failed."""


class ClusterNamespaces:
    """The namespaces of a running cluster; created by ``claim``."""

    def __init__(self, prefix: str, record: int, path: Path) -> None:
        self._prefix = prefix
        self._record = record
        self._path = path
        self._names: set[str] = set()

    @classmethod
    def claim(cls) -> ClusterNamespaces:
        """Claim a free prefix; raises ``ConfigError`` where no network is possible."""
        if os.geteuid() != 0:
            raise ConfigError("network namespaces need root")
        for program, package in _PACKAGES.items():
            if shutil.which(program) is None:
                raise ConfigError(f"there is no program {program}; install {package}")
        remove_stale_namespaces()
        for number in range(1, MAX_CLUSTERS):
            prefix = _PREFIX if number == 1 else f"{_PREFIX}{number}"
            path = RECORDS / prefix
            record = lock_record(path, create=True)
            if record is None:
                continue
            if _is_prefix_in_use(prefix):
                path.unlink()
                os.close(record)
                continue
            namespaces = cls(prefix, record, path)
            try:
                namespaces.add([namespaces.fabric])
                Kernel({}, namespaces.fabric).close()
            except BaseException:
                namespaces.close()
                raise
            return namespaces
        raise ConfigError(f"{MAX_CLUSTERS - 1} clusters have a network already, which is the limit")

    @property
    def fabric(self) -> NetworkNamespace:
        """The namespace that connects the nodes; for them it is the outside."""
        return NetworkNamespace(self._prefix)

    def node(self, name: str) -> NetworkNamespace:
        """The namespace of a node."""
        full = f"{self._prefix}-{name}"
        if len(full) > _NAME_LIMIT:
            digest = hashlib.sha256(name.encode()).hexdigest()[:12]
            full = f"{full[: _NAME_LIMIT - 13]}-{digest}"
        return NetworkNamespace(full)

    def add(self, namespaces: Iterable[NetworkNamespace]) -> None:
        """Create namespaces."""
        names = [namespace.name for namespace in namespaces]
        new_names = [name for name in names if name not in self._names]
        if new_names:
            os.write(self._record, "".join(f"{name}\n" for name in new_names).encode())
            self._names.update(new_names)
        run_ip([f"netns add {name}" for name in names])
        for name in names:
            _enable_forwarding(NetworkNamespace(name))

    def remove(self, namespaces: Iterable[NetworkNamespace]) -> None:
        """Delete namespaces, and everything in them."""
        _delete_namespaces(namespace.name for namespace in namespaces)

    def close(self) -> None:
        """Delete all of them; the next program that starts retries what cannot be deleted now."""
        try:
            _delete_namespaces(self._names)
            self._path.unlink(missing_ok=True)
        except IpFailed as error:
            _log.warning("a network namespace could not be deleted", error=str(error))
        finally:
            os.close(self._record)


def remove_stale_namespaces() -> None:
    """Remove namespaces of clusters whose program was killed."""
    if not RECORDS.is_dir():
        return
    for path in sorted(RECORDS.iterdir()):
        record = lock_record(path, create=False)
        if record is not None:
            _delete_namespaces(path.read_text().splitlines())
            path.unlink()
            os.close(record)


def _enable_forwarding(namespace: NetworkNamespace) -> None:
    """Let the kernel forward packets in a namespace."""
    try:
        with namespace.entered():
            for path, value in _FORWARDING.items():
                Path("/proc/sys/net", path).write_text(value)
    except OSError as error:
        raise ConfigError(f"packets cannot be forwarded here: {error.strerror}") from error


def run_ip(commands: Sequence[str], namespace: NetworkNamespace | None = None) -> None:
    """Run ``ip`` commands in order; all are run, then the first failure is raised."""
    if not commands:
        return
    options = ("-n", namespace.name) if namespace is not None else ()
    completed = subprocess.run(
        ["ip", *options, "-force", "-batch", "-"],
        input="\n".join(commands),
        text=True,
        check=False,
        capture_output=True,
    )
    if completed.returncode:
        lines = completed.stderr.strip().splitlines()
        reason = lines[0] if lines else f"exit {completed.returncode}"
        line = re.search(r"Command failed -:(\d+)", completed.stderr)
        command = f" {commands[int(line[1]) - 1]}" if line else ""
        raise IpFailed(f"ip{command}: {reason}")


def _delete_namespaces(names: Iterable[str]) -> None:
    run_ip([f"netns del {name}" for name in sorted(names) if (NAMESPACES / name).exists()])


def _is_prefix_in_use(prefix: str) -> bool:
    names = (path.name for path in NAMESPACES.iterdir()) if NAMESPACES.is_dir() else ()
    return any(name == prefix or name.startswith(f"{prefix}-") for name in names)
