"""A Ceph on loopback: mon, mgr, three OSDs in three zones, an mds, all below one folder.

Usable after some seconds because nothing waits: daemons are children of ours in the foreground,
keys and configuration are written by us, commands go through librados and not through the `ceph`
program, and the monitors' pause between proposals, made for large clusters, is shortened. Data is
in memory: a stopped cluster leaves nothing, and a killed OSD loses its data (stop it with SIGSTOP
to continue it later).

Pools: ``rbd-a``, ``rbd-b``, ``rbd-c`` in their zones, one replica each; ``journal`` in all three.
The file system ``files`` has ``fs-a``, ``fs-b``, ``fs-c`` in the same way. Its mds checks its
queue five times a second: by default a copy waits for seconds.
"""

from __future__ import annotations

import base64
import json
import os
import secrets
import signal
import socket
import struct
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

ZONES = ("a", "b", "c")
JOURNAL = "journal"
USER = "zonewise"
SECONDS = 90.0
_IDLE_MODULES = (
    "alerts cephadm cli_api dashboard deepsea diskprediction_local hello influx insights iostat"
    " k8sevents localpool mds_autoscaler mirroring nfs osd_perf_query osd_support prometheus"
    " restful rook selftest snap_schedule stats telegraf test_orchestrator zabbix"
)
_CAPS = {
    "mon.": {"mon": "allow *"},
    "client.admin": {"mon": "allow *", "mgr": "allow *", "osd": "allow *", "mds": "allow *"},
    "mgr.x": {"mon": "allow profile mgr", "osd": "allow *", "mds": "allow *"},
    "mds.a": {"mon": "allow profile mds", "osd": "allow *", "mds": "allow", "mgr": "allow *"},
    **{
        f"osd.{number}": {"mon": "allow profile osd", "mgr": "allow profile osd", "osd": "allow *"}
        for number in range(len(ZONES))
    },
}


class CephCluster:
    """A running cluster; ``started`` starts one and stops it by its processes' ids."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.fsid = str(uuid.uuid4())
        self.ports = _ports(3)
        self.keys = {name: _key() for name in _CAPS}
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.admin: Any = None

    @property
    def monitor(self) -> str:
        """The monitor's address."""
        return f"127.0.0.1:{self.ports[0]}"

    @property
    def key_file(self) -> Path:
        """The key of the driver's user."""
        return self.folder / "zonewise.key"

    def clusters(self) -> list[dict[str, Any]]:
        """``clusters`` of a driver's configuration."""
        return [
            {
                "clusterID": self.fsid,
                "monitors": [f"v2:{self.monitor}"],
                "user": USER,
                "keyFile": str(self.key_file),
            }
        ]

    def command(self, prefix: str, **arguments: Any) -> Any:
        """Send a command to the monitor; its answer as JSON, or None if it is empty."""
        return self._send(self.admin.mon_command, prefix, arguments)

    def manager(self, prefix: str, **arguments: Any) -> Any:
        """Send a command to the manager; the same answers."""
        return self._send(self.admin.mgr_command, prefix, arguments)

    def evict(self, mount: str) -> None:
        """Have the mds evict the oldest client that mounted at a path, and is dead."""
        (socket_path,) = (self.folder / "run").glob("mds.a.*.asok")
        ask = ["ceph", "--admin-daemon", str(socket_path), "session"]
        listed = subprocess.run([*ask, "ls"], capture_output=True, check=True)
        sessions = [
            (session["id"], session["inst"].split()[1])
            for session in json.loads(listed.stdout)
            if session["client_metadata"].get("mount_point", "").endswith(mount)
        ]
        id, address = min(sessions)
        subprocess.run([*ask, "evict", str(id)], capture_output=True, check=True)
        # The mds blocklists it as well; it is dead, and must not count as fenced by the driver.
        self.command("osd blocklist", blocklistop="rm", addr=address)

    def signal(self, name: str, number: signal.Signals) -> None:
        """Send a signal to a daemon: after SIGSTOP a zone does not answer."""
        self.processes[name].send_signal(number)

    def start(self, *, files: bool = False) -> None:
        """Start everything; an mds and a file system with ``files``."""
        import rados

        for name in ("mon", "mgr", "mds", "run", *(f"osd{number}" for number in range(len(ZONES)))):
            (self.folder / name).mkdir()
        self._write()
        self._monitor()
        self.admin = rados.Rados(
            conffile=str(self.folder / "ceph.conf"), conf={"client_mount_timeout": "30"}
        )
        self.admin.connect()
        self._user()
        self._run("ceph-mgr", "mgr", "x")
        self._storage()
        self._pools()
        if files:
            self._files()
        self.wait("df", self.counted)

    def stop(self) -> None:
        """End every process that was started here."""
        if self.admin is not None:
            self.admin.shutdown()
        for process in self.processes.values():
            process.kill()
        for process in self.processes.values():
            process.wait()
        self.processes.clear()

    def pool(self, name: str, rule: str, size: int = 1, application: str = "rbd") -> None:
        """Make a pool; it is usable when this returns."""
        self.command(
            "osd pool create", pool=name, pg_num=8, pool_type="replicated", rule=rule, size=size
        )
        self.command("osd pool application enable", pool=name, app=application)
        if size == 1:
            # Alone, an OSD that misses its own lease (3 s, on a busy machine) stops answering: it
            # continues only when another one acknowledges the next.
            self.command("osd pool set", pool=name, var="read_lease_interval", val="3600")

    def up(self) -> int:
        """How many OSDs the monitor considers up."""
        return int(self.command("osd stat")["num_up_osds"])

    def _write(self) -> None:
        for name, caps in _CAPS.items():
            with (self.folder / "keyring").open("a") as file:
                file.write(f"[{name}]\n\tkey = {self.keys[name]}\n")
                file.writelines(f'\tcaps {kind} = "{text}"\n' for kind, text in caps.items())
        low = 20000 + secrets.randbelow(100) * 100
        settings = {
            "fsid": self.fsid,
            "mon_host": f"[v2:127.0.0.1:{self.ports[0]},v1:127.0.0.1:{self.ports[1]}]",
            "public_addr": "127.0.0.1",
            "cluster_addr": "127.0.0.1",
            "ms_bind_port_min": low,
            "ms_bind_port_max": low + 99,
            "auth_cluster_required": "cephx",
            "auth_service_required": "cephx",
            "auth_client_required": "cephx",
            "auth_allow_insecure_global_id_reclaim": "false",
            "keyring": self.folder / "keyring",
            "run_dir": self.folder / "run",
            "admin_socket": f"{self.folder}/run/$type.$id.$pid.asok",
            "log_file": f"{self.folder}/$type.$id.log",
            "crash_dir": self.folder / "run",
            "mon_data": self.folder / "mon",
            "mgr_data": self.folder / "mgr",
            "mds_data": self.folder / "mds",
            "osd_data": f"{self.folder}/osd$id",
            "osd_pool_default_size": 1,
            "osd_pool_default_min_size": 1,
            "osd_pool_default_pg_autoscale_mode": "off",
            "mon_allow_pool_size_one": "true",
            "mon_allow_pool_delete": "true",
            "mon_data_avail_crit": 1,
            "mon_data_avail_warn": 2,
            "mon_osd_down_out_interval": 3600,
            "mon_osd_min_down_reporters": 1,
            "mon_osd_reporter_subtree_level": "osd",
            "osd_max_markdown_count": 1000,
            "osd_heartbeat_interval": 1,
            "osd_heartbeat_grace": 4,
            "paxos_propose_interval": 0.05,
            "rbd_default_features": 61,
            "rbd_default_clone_format": 2,
            "osd_objectstore": "memstore",
            "memstore_device_bytes": 1 << 29,
            "mgr_disabled_modules": _IDLE_MODULES,
            "mds_tick_interval": 0.2,
            "mgr_tick_period": 1,
            "mgr_stats_period": 1,
        }
        text = "[global]\n" + "".join(f"{key} = {value}\n" for key, value in settings.items())
        for number, zone in enumerate(ZONES):
            location = f"root=default zone={zone} host=host-{zone}"
            text += f"[osd.{number}]\ncrush_location = {location}\n"
        (self.folder / "ceph.conf").write_text(text)

    def _monitor(self) -> None:
        monmap, keyring = str(self.folder / "monmap"), str(self.folder / "keyring")
        addresses = f"[v2:127.0.0.1:{self.ports[0]},v1:127.0.0.1:{self.ports[1]}]"
        self._do(
            *("monmaptool", "--create", "--addv", "a", addresses),
            *("--enable-all-features", "--fsid", self.fsid, monmap),
        )
        self._do("ceph-mon", "--mkfs", "-i", "a", "--monmap", monmap, "--keyring", keyring)
        self._run("ceph-mon", "mon", "a")

    def _user(self) -> None:
        answer = self.command(
            "auth get-or-create",
            entity=f"client.{USER}",
            caps=[
                "mon",
                "profile rbd, allow r",
                "mgr",
                "allow rw",
                "osd",
                "allow rwx",
                "mds",
                "allow rw",
            ],
        )
        self.key_file.touch(mode=0o600)
        self.key_file.write_text(answer[0]["key"] + "\n")

    def _storage(self) -> None:
        uuids = []
        for number in range(len(ZONES)):
            uuids.append(str(uuid.uuid4()))
            self.command("osd new", uuid=uuids[-1], id=number)
        making = [
            subprocess.Popen(
                ["ceph-osd", "--mkfs", "-i", str(number), "--osd-uuid", uuid],
                env=self._environment(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            for number, uuid in enumerate(uuids)
        ]
        for number, process in enumerate(making):
            if process.wait() != 0:
                raise RuntimeError(f"ceph-osd --mkfs of osd.{number} failed")
            self._run("ceph-osd", f"osd.{number}", str(number))
        self.wait("OSDs", lambda: self.up() == len(ZONES))

    def _pools(self) -> None:
        for zone in ZONES:
            self.command(
                "osd crush rule create-replicated",
                name=f"zone-{zone}",
                root=zone,
                type="osd",
            )
            self.pool(f"rbd-{zone}", f"zone-{zone}")
        self.command("osd crush rule create-replicated", name="zones", root="default", type="zone")
        self.pool(JOURNAL, "zones", size=len(ZONES))

    def _files(self) -> None:
        self.pool("fs-meta", "zones", size=len(ZONES), application="cephfs")
        self.pool("fs-data", "zones", size=len(ZONES), application="cephfs")
        self._run("ceph-mds", "mds", "a")
        self.command("fs new", fs_name="files", metadata="fs-meta", data="fs-data")
        for zone in ZONES:
            self.pool(f"fs-{zone}", f"zone-{zone}", application="cephfs")
            self.command("fs add_data_pool", fs_name="files", pool=f"fs-{zone}")
        self.wait("mds", lambda: "up:active" in json.dumps(self.command("fs dump")))
        self.wait("subvolumes", self._manages)

    def counted(self) -> bool:
        """Whether every pool has been measured; before that Ceph reports no free space."""
        measured = self.command("df")["pools"]
        known = self.command("osd pool ls")
        return len(measured) == len(known) and all(pool["stats"]["max_avail"] for pool in measured)

    def _manages(self) -> bool:
        """Whether the manager has loaded its module of subvolumes; it answers before that."""
        try:
            return bool(self.manager("fs volume ls"))
        except RuntimeError:
            return False

    def _run(self, program: str, name: str, id: str) -> None:
        with (self.folder / f"{name}.out").open("wb") as out:
            self.processes[name] = subprocess.Popen(
                [program, "-f", "-i", id], env=self._environment(), stdout=out, stderr=out
            )

    def _do(self, *command: str) -> None:
        done = subprocess.run(command, env=self._environment(), capture_output=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"{command[0]} failed: {done.stderr.decode()[-500:]}")

    def _environment(self) -> Mapping[str, str]:
        return {**os.environ, "CEPH_CONF": str(self.folder / "ceph.conf")}

    def wait(self, what: str, reached: Callable[[], bool]) -> None:
        """Wait for something, as long as every daemon lives."""
        end = time.monotonic() + SECONDS
        while not reached():
            for name, process in self.processes.items():
                if process.poll() is not None:
                    raise RuntimeError(f"{name} ended: {(self.folder / f'{name}.out').read_text()}")
            if time.monotonic() > end:
                raise RuntimeError(f"Ceph's {what} were not there after {SECONDS:.0f} s")
            time.sleep(0.02)

    def _send(self, ask: Callable[..., Any], prefix: str, arguments: dict[str, Any]) -> Any:
        code, out, words = ask(json.dumps({"prefix": prefix, "format": "json", **arguments}), b"")
        if code != 0:
            raise RuntimeError(f"{prefix}: {code} {words}")
        return json.loads(out) if out else None


@contextmanager
def started(folder: Path, *, files: bool = False) -> Iterator[CephCluster]:
    """A cluster below a folder, stopped at the end."""
    cluster = CephCluster(folder)
    try:
        cluster.start(files=files)
        yield cluster
    finally:
        with suppress(ProcessLookupError):
            for name in cluster.processes:
                cluster.signal(name, signal.SIGCONT)
        cluster.stop()


def _key() -> str:
    """A cephx key as ceph-authtool writes them."""
    head = struct.pack("<HIIH", 1, int(time.time()), 0, 16)
    return base64.b64encode(head + secrets.token_bytes(16)).decode()


def _ports(count: int) -> list[int]:
    opened = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    try:
        return [opened_socket.getsockname()[1] for opened_socket in opened]
    finally:
        for opened_socket in opened:
            opened_socket.close()
