"""One connection to a Ceph cluster, as the driver's own user.

Every handle has limits: to find a monitor, for a monitor's answer and for an OSD's. Without them a
dead zone blocks a call forever. librados ignores the timeout of ``connect`` itself, so they are set
before. librados fetches a newer map when an operation hangs for ten seconds: with a shorter limit
it never would, and would keep writing to an OSD that the cluster replaced long ago. So it is set to
two. A write that ran into its limit may still be applied when the OSD is back: it is UNAVAILABLE,
never a failure, and the next call looks again.

The manager executes commands one after the other, among them some that wait for clients of the file
system. It has a longer limit and therefore a connection of its own.

A connection is made when it is first needed and is used by all threads; librados is thread-safe.

A pool is its number, which it keeps when it is renamed and which no other pool ever gets. What a
name means is looked up again after a second, so that a pool that was recreated is not taken for its
predecessor. Opening a pool that librados does not know waits for a monitor, without any limit:
therefore a monitor is asked first, with a limit.
"""

from __future__ import annotations

import errno
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import rados
import rbd

from zonewise.csi.backends.ceph.client_conf import mon_host
from zonewise.csi.status import Code, CsiError
from zonewise.runtime.process.logs import logger
from zonewise.storage.configuration import CephCluster

CONNECT_SECONDS = 10
OPERATION_SECONDS = 5
MANAGER_SECONDS = 15
AWAY_SECONDS = 3.0
"""How long no connection is attempted to a cluster that did not answer."""
NAME_SECONDS = 1.0
"""How long a pool's name is assumed to mean the same pool."""

_MEANINGS = {
    errno.EPERM: Code.PERMISSION_DENIED,
    errno.EACCES: Code.PERMISSION_DENIED,
    errno.EAGAIN: Code.ABORTED,
    errno.EBUSY: Code.ABORTED,
    errno.EINVAL: Code.INVALID_ARGUMENT,
}


_log = logger("csi")


class CommandFailed(CsiError):
    """A command that a monitor or the manager refused; ``errno`` is why, and is above 0."""

    def __init__(self, errno: int, message: str) -> None:
        super().__init__(_MEANINGS.get(errno, Code.UNAVAILABLE), message)
        self.errno = errno


class ShutOut(CsiError):
    """The connection was blocklisted; another one may do it."""

    def __init__(self, doing: str) -> None:
        super().__init__(
            Code.UNAVAILABLE, f"{doing}: the driver's client was blocklisted; try again"
        )


class PoolMissing(CsiError):
    """There is no pool of that name."""

    def __init__(self, message: str) -> None:
        super().__init__(Code.INVALID_ARGUMENT, message)


class Ceph:
    """A cluster and its pools."""

    def __init__(self, cluster: CephCluster, *, seconds: int = OPERATION_SECONDS) -> None:
        self.cluster = cluster
        self._seconds = seconds
        self._lock = threading.Lock()
        self._handle: rados.Rados | None = None
        self._manager: rados.Rados | None = None
        self._pools: dict[tuple[int, str], rados.Ioctx] = {}
        self._numbers: dict[str, tuple[int, float]] = {}
        self._away: tuple[float, CsiError] | None = None

    @property
    def client(self) -> str:
        """The user's full name."""
        return f"client.{self.cluster.user}"

    def pool(self, name: str, namespace: str = "") -> rados.Ioctx:
        """A pool; INVALID_ARGUMENT if there is none of that name."""
        return self.numbered(self.number(name), name, namespace)

    def numbered(self, number: int, name: str, namespace: str = "") -> rados.Ioctx:
        """The pool of a number; ``name`` is for the error message if it is deleted."""
        handle = self.handle()
        found = self._pools.get((number, namespace))
        if found is None:
            if self._numbers.get(name, (-1,))[0] != number:
                self.newest()
            with self._lock, told(f"opening pool {name}"):
                try:
                    found = handle.open_ioctx2(number)
                except rados.ObjectNotFound:
                    raise self._missing(name) from None
                found.set_namespace(namespace)
                found = self._pools.setdefault((number, namespace), found)
        return found

    def number(self, name: str) -> int:
        """The number of a pool; INVALID_ARGUMENT if there is none of that name."""
        known = self._numbers.get(name)
        if known is None or time.monotonic() - known[1] > NAME_SECONDS:
            return self._looked_up(name)
        return known[0]

    def _looked_up(self, name: str) -> int:
        handle = self.handle()
        with told(f"looking for pool {name}"):
            if name not in handle.list_pools():
                self.newest()
            found = handle.pool_lookup(name)
        if found is None:
            self._numbers.pop(name, None)
            raise self._missing(name)
        self._numbers[name] = (found, time.monotonic())
        return found

    def name_of(self, number: int, guess: str) -> str | None:
        """A pool's name now, probably as guessed; None if it is deleted."""
        try:
            if self._looked_up(guess) == number:
                return guess
        except PoolMissing:
            pass
        self.newest()
        with told(f"looking for pool number {number}"):
            try:
                return self.handle().pool_reverse_lookup(number)
            except rados.ObjectNotFound:
                return None

    def newest(self) -> None:
        """Wait for the newest map, as long as a monitor may take."""
        self.ask("osd stat")
        with told("waiting for the newest map"):
            self.handle().wait_for_latest_osdmap()

    def _missing(self, name: str) -> PoolMissing:
        return PoolMissing(f"cluster {self.cluster.cluster_id} has no pool {name!r}")

    def pools(self) -> list[str]:
        """The names of all pools."""
        with told("listing the pools"):
            return sorted(self.handle().list_pools())

    def ask(self, prefix: str, **arguments: Any) -> Any:
        """A monitor's answer."""
        ask = self.handle().mon_command
        with self._watched():
            return self._asked(ask, prefix, arguments)

    def manage(self, prefix: str, **arguments: Any) -> Any:
        """The manager's answer."""
        with self._lock:
            if self._manager is None:
                self._manager = self._reached(MANAGER_SECONDS)
            manager = self._manager
        return self._asked(manager.mgr_command, prefix, arguments)

    def handle(self) -> rados.Rados:
        """The connection, made if there is none."""
        with self._lock:
            if self._handle is None:
                self._handle = self._reached(self._seconds)
            return self._handle

    def close(self) -> None:
        """Close it."""
        with self._lock:
            for pool in self._pools.values():
                pool.close()
            self._pools.clear()
            self._numbers.clear()
            for handle in (self._handle, self._manager):
                if handle is not None:
                    handle.shutdown()
            self._handle = self._manager = None

    def shut_out(self) -> bool:
        """Whether our address is blocklisted: this connection will never write again."""
        own = {*client_numbers(self.handle().get_addrs())}
        return any(client_number(one) in own for one in self.ask("osd dump")["blocklist"])

    def _reached(self, seconds: int) -> rados.Rados:
        """A connection. Callers that waited while another failed to make it get the same error."""
        if self._away is not None and time.monotonic() - self._away[0] < AWAY_SECONDS:
            raise CsiError(self._away[1].code, self._away[1].message)
        with self._watched():
            return self._connected(seconds)

    @contextmanager
    def _watched(self) -> Iterator[None]:
        """Reports when a cluster becomes unreachable, and when it is reachable again."""
        cluster = self.cluster.cluster_id
        try:
            yield
        except CsiError as error:
            refused = isinstance(error, CommandFailed) and error.errno != errno.ETIMEDOUT
            if error.code is Code.UNAVAILABLE and not refused:
                if self._away is None:
                    _log.warning(
                        "a Ceph cluster does not answer", cluster=cluster, why=error.message
                    )
                self._away = (time.monotonic(), error)
            raise
        if self._away is not None:
            _log.info("a Ceph cluster answers again", cluster=cluster)
        self._away = None

    def _connected(self, seconds: int) -> rados.Rados:
        limits = str(seconds)
        try:
            handle = rados.Rados(
                rados_id=self.cluster.user,
                conf={
                    "mon_host": mon_host(self.cluster),
                    "keyfile": self.cluster.key_file,
                    "client_mount_timeout": str(CONNECT_SECONDS),
                    "rados_mon_op_timeout": limits,
                    "rados_osd_op_timeout": limits,
                    "objecter_tick_interval": "1",
                    "objecter_timeout": "2",
                    "rbd_default_clone_format": "2",
                    "log_to_stderr": "false",
                    "log_file": "/dev/null",
                },
            )
            try:
                with told(f"connecting to cluster {self.cluster.cluster_id}"):
                    handle.connect()
            except BaseException:
                handle.shutdown()  # its threads and files would stay: the module does not free them
                raise
        except rados.PermissionDeniedError:
            raise CsiError(
                Code.UNAUTHENTICATED,
                f"cluster {self.cluster.cluster_id} does not accept the key of {self.client}",
            ) from None
        except (rados.InvalidArgumentError, rados.ObjectNotFound):
            raise CsiError(
                Code.UNAUTHENTICATED,
                f"keyFile of cluster {self.cluster.cluster_id} is missing or holds no key",
            ) from None
        return handle

    def _asked(self, ask: Any, prefix: str, arguments: dict[str, Any]) -> Any:
        with told(prefix):
            code, out, words = ask(
                json.dumps({"prefix": prefix, "format": "json", **arguments}), b""
            )
        if code:
            number = abs(code)
            if number == errno.ETIMEDOUT:
                words = "Ceph did not answer in time; it may still happen"
            raise CommandFailed(number, f"{prefix}: {words or errno.errorcode.get(number)}")
        return json.loads(out) if out else None


@contextmanager
def told(doing: str) -> Iterator[None]:
    """Ceph's errors in the words of the protocol; those that a caller expects it catches itself."""
    try:
        yield
    except (rados.PermissionError, rbd.PermissionError) as error:
        raise CsiError(Code.PERMISSION_DENIED, f"{doing}: the driver's user may not") from error
    except (rados.PermissionDeniedError, rados.InvalidArgumentError, rados.ObjectNotFound):
        raise
    except rbd.ImageExists:
        raise
    except (rbd.ImageBusy, rados.ObjectBusy) as error:
        raise CsiError(
            Code.ABORTED, f"{doing}: it is open elsewhere, or was until its client died; try again"
        ) from error
    except (rados.TimedOut, rbd.Timeout) as error:
        raise CsiError(
            Code.UNAVAILABLE, f"{doing}: Ceph did not answer in time; it may still happen"
        ) from error
    except (rados.Error, rbd.Error) as error:
        if getattr(error, "errno", None) == errno.ESHUTDOWN:
            raise ShutOut(doing) from error
        raise CsiError(Code.UNAVAILABLE, f"{doing}: {error}") from error


def client_numbers(addresses: str) -> Iterator[str]:
    """The numbers of all addresses of a client: ``v2:10.0.0.1:0/123,v1:…``."""
    return (client_number(one) for one in addresses.strip("[]").split(","))


def client_number(address: str) -> str:
    """What distinguishes one client of an address from every other."""
    return address.rpartition("/")[2]
