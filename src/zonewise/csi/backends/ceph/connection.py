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
from zonewise.csi.errors import Code, CsiError, aborted, unavailable
from zonewise.runtime.process.logs import logger
from zonewise.storage.configuration import CephCluster

CONNECT_SECONDS = 10
OPERATION_SECONDS = 5
MANAGER_SECONDS = 15
UNREACHABLE_SECONDS = 3.0
"""How long no connection is attempted to a cluster that did not answer."""
POOL_NAME_SECONDS = 1.0
"""How long a pool's name is assumed to mean the same pool."""

_CODES = {
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
        super().__init__(_CODES.get(errno, Code.UNAVAILABLE), message)
        self.errno = errno


class Blocklisted(CsiError):
    """The connection was blocklisted; another one may do it."""

    def __init__(self, action: str) -> None:
        super().__init__(
            Code.UNAVAILABLE, f"{action}: the driver's client was blocklisted; try again"
        )


class PoolMissing(CsiError):
    """There is no pool of that name."""

    def __init__(self, message: str) -> None:
        super().__init__(Code.INVALID_ARGUMENT, message)


class CephConnection:
    """A cluster and its pools."""

    def __init__(self, cluster: CephCluster, *, seconds: int = OPERATION_SECONDS) -> None:
        self.cluster = cluster
        self._operation_seconds = seconds
        self._lock = threading.Lock()
        self._handle: rados.Rados | None = None
        self._manager: rados.Rados | None = None
        self._pools: dict[tuple[int, str], rados.Ioctx] = {}
        self._numbers_by_name: dict[str, tuple[int, float]] = {}
        self._unreachable: tuple[float, CsiError] | None = None

    @property
    def client_name(self) -> str:
        """The user's full name."""
        return f"client.{self.cluster.user}"

    def open_pool(self, name: str, namespace: str = "") -> rados.Ioctx:
        """A pool; INVALID_ARGUMENT if there is none of that name."""
        return self.open_pool_number(self.pool_number(name), name, namespace)

    def open_pool_number(self, number: int, name: str, namespace: str = "") -> rados.Ioctx:
        """The pool of a number; ``name`` is for the error message if it is deleted."""
        handle = self.handle()
        pool = self._pools.get((number, namespace))
        if pool is None:
            if self._numbers_by_name.get(name, (-1,))[0] != number:
                self.wait_for_newest_map()
            with self._lock, translate_errors(f"opening pool {name}"):
                try:
                    pool = handle.open_ioctx2(number)
                except rados.ObjectNotFound:
                    raise self._pool_missing(name) from None
                pool.set_namespace(namespace)
                pool = self._pools.setdefault((number, namespace), pool)
        return pool

    def pool_number(self, name: str) -> int:
        """The number of a pool; INVALID_ARGUMENT if there is none of that name."""
        cached = self._numbers_by_name.get(name)
        if cached is None or time.monotonic() - cached[1] > POOL_NAME_SECONDS:
            return self._look_up_number(name)
        return cached[0]

    def _look_up_number(self, name: str) -> int:
        handle = self.handle()
        with translate_errors(f"looking for pool {name}"):
            if name not in handle.list_pools():
                self.wait_for_newest_map()
            number = handle.pool_lookup(name)
        if number is None:
            self._numbers_by_name.pop(name, None)
            raise self._pool_missing(name)
        self._numbers_by_name[name] = (number, time.monotonic())
        return number

    def find_pool_name(self, number: int, guess: str) -> str | None:
        """A pool's name now, probably as guessed; None if it is deleted."""
        try:
            if self._look_up_number(guess) == number:
                return guess
        except PoolMissing:
            pass
        self.wait_for_newest_map()
        with translate_errors(f"looking for pool number {number}"):
            try:
                return self.handle().pool_reverse_lookup(number)
            except rados.ObjectNotFound:
                return None

    def wait_for_newest_map(self) -> None:
        """Wait for the newest map, as long as a monitor may take."""
        self.mon_command("osd stat")
        with translate_errors("waiting for the newest map"):
            self.handle().wait_for_latest_osdmap()

    def _pool_missing(self, name: str) -> PoolMissing:
        return PoolMissing(f"cluster {self.cluster.cluster_id} has no pool {name!r}")

    def list_pools(self) -> list[str]:
        """The names of all pools."""
        with translate_errors("listing the pools"):
            return sorted(self.handle().list_pools())

    def mon_command(self, prefix: str, **arguments: Any) -> Any:
        """A monitor's answer."""
        command = self.handle().mon_command
        with self._log_reachability():
            return self._run_command(command, prefix, arguments)

    def mgr_command(self, prefix: str, **arguments: Any) -> Any:
        """The manager's answer."""
        with self._lock:
            if self._manager is None:
                self._manager = self._connect(MANAGER_SECONDS)
            manager = self._manager
        return self._run_command(manager.mgr_command, prefix, arguments)

    def handle(self) -> rados.Rados:
        """The connection, made if there is none."""
        with self._lock:
            if self._handle is None:
                self._handle = self._connect(self._operation_seconds)
            return self._handle

    def close(self) -> None:
        """Close it."""
        with self._lock:
            for pool in self._pools.values():
                pool.close()
            self._pools.clear()
            self._numbers_by_name.clear()
            for handle in (self._handle, self._manager):
                if handle is not None:
                    handle.shutdown()
            self._handle = self._manager = None

    def is_blocklisted(self) -> bool:
        """Whether our address is blocklisted: this connection will never write again."""
        own_nonces = {*client_nonces(self.handle().get_addrs())}
        return any(
            client_nonce(address) in own_nonces
            for address in self.mon_command("osd dump")["blocklist"]
        )

    def _connect(self, seconds: int) -> rados.Rados:
        """A connection. Callers that waited while another failed to make it get the same error."""
        if (
            self._unreachable is not None
            and time.monotonic() - self._unreachable[0] < UNREACHABLE_SECONDS
        ):
            raise CsiError(self._unreachable[1].code, self._unreachable[1].message)
        with self._log_reachability():
            return self._open_handle(seconds)

    @contextmanager
    def _log_reachability(self) -> Iterator[None]:
        """Reports when a cluster becomes unreachable, and when it is reachable again."""
        cluster = self.cluster.cluster_id
        try:
            yield
        except CsiError as error:
            refused = isinstance(error, CommandFailed) and error.errno != errno.ETIMEDOUT
            if error.code is Code.UNAVAILABLE and not refused:
                if self._unreachable is None:
                    _log.warning(
                        "a Ceph cluster does not answer", cluster=cluster, why=error.message
                    )
                self._unreachable = (time.monotonic(), error)
            raise
        if self._unreachable is not None:
            _log.info("a Ceph cluster answers again", cluster=cluster)
        self._unreachable = None

    def _open_handle(self, seconds: int) -> rados.Rados:
        timeout = str(seconds)
        try:
            handle = rados.Rados(
                rados_id=self.cluster.user,
                conf={
                    "mon_host": mon_host(self.cluster),
                    "keyfile": self.cluster.key_file,
                    "client_mount_timeout": str(CONNECT_SECONDS),
                    "rados_mon_op_timeout": timeout,
                    "rados_osd_op_timeout": timeout,
                    "objecter_tick_interval": "1",
                    "objecter_timeout": "2",
                    "rbd_default_clone_format": "2",
                    "log_to_stderr": "false",
                    "log_file": "/dev/null",
                },
            )
            try:
                with translate_errors(f"connecting to cluster {self.cluster.cluster_id}"):
                    handle.connect()
            except BaseException:
                handle.shutdown()  # its threads and files would stay: the module does not free them
                raise
        except rados.PermissionDeniedError:
            raise CsiError(
                Code.UNAUTHENTICATED,
                f"cluster {self.cluster.cluster_id} does not accept the key of {self.client_name}",
            ) from None
        except (rados.InvalidArgumentError, rados.ObjectNotFound):
            raise CsiError(
                Code.UNAUTHENTICATED,
                f"keyFile of cluster {self.cluster.cluster_id} is missing or holds no key",
            ) from None
        return handle

    def _run_command(self, command: Any, prefix: str, arguments: dict[str, Any]) -> Any:
        with translate_errors(prefix):
            code, output, message = command(
                json.dumps({"prefix": prefix, "format": "json", **arguments}), b""
            )
        if code:
            number = abs(code)
            if number == errno.ETIMEDOUT:
                message = "Ceph did not answer in time; it may still happen"
            raise CommandFailed(number, f"{prefix}: {message or errno.errorcode.get(number)}")
        return json.loads(output) if output else None


@contextmanager
def translate_errors(action: str) -> Iterator[None]:
    """Ceph's errors in the words of the protocol; those that a caller expects it catches itself."""
    try:
        yield
    except (rados.PermissionError, rbd.PermissionError) as error:
        raise CsiError(Code.PERMISSION_DENIED, f"{action}: the driver's user may not") from error
    except (rados.PermissionDeniedError, rados.InvalidArgumentError, rados.ObjectNotFound):
        raise
    except rbd.ImageExists:
        raise
    except (rbd.ImageBusy, rados.ObjectBusy) as error:
        raise aborted(
            f"{action}: it is open elsewhere, or was until its client died; try again"
        ) from error
    except (rados.TimedOut, rbd.Timeout) as error:
        raise unavailable(f"{action}: Ceph did not answer in time; it may still happen") from error
    except (rados.Error, rbd.Error) as error:
        if getattr(error, "errno", None) == errno.ESHUTDOWN:
            raise Blocklisted(action) from error
        raise unavailable(f"{action}: {error}") from error


def client_nonces(addresses: str) -> Iterator[str]:
    """The numbers of all addresses of a client: ``v2:10.0.0.1:0/123,v1:…``."""
    return (client_nonce(address) for address in addresses.strip("[]").split(","))


def client_nonce(address: str) -> str:
    """What distinguishes one client of an address from every other."""
    return address.rpartition("/")[2]
