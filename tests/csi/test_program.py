"""``zonewise csi`` as a program: its start, changes of its file, and ``check``."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import pytest
from tests.csi.scene import (
    DRIVER,
    LABELS,
    MIB,
    Caller,
    Program,
    calling,
    config,
    pool,
    refused,
    requirement,
    running,
    segments,
)
from tests.embedded.apiserver.program import running as api_running

from zonewise.api.errors import ConfigError
from zonewise.cli.main import main
from zonewise.csi.config_file import ConfigFile
from zonewise.csi.errors import Code, CsiError
from zonewise.csi.protocol import csi_pb2 as csi
from zonewise.csi.transport import methods
from zonewise.storage.domains import parse_domain_labels

A, B = segments("a"), segments("b")


async def until(condition: Callable[[], bool | Awaitable[bool]]) -> None:
    """Wait for a condition."""
    while True:
        holds = condition()
        if holds if isinstance(holds, bool) else await holds:
            return
        await asyncio.sleep(0.05)


GOOD = {
    "--endpoint": "unix:///SOCKET",
    "--node-id": "n1",
    "--config": "CONFIG",
    "--data": "DATA",
    "--drivername": DRIVER,
    "--domain-labels": LABELS,
    "--orchestrator": "none",
    "--domain": "region=r1;zone=a",
}


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"--endpoint": "tcp://1.2.3.4:5"}, "unix:///"),
        ({"--endpoint": None}, "--endpoint"),
        ({"--node-id": None}, "--node-id"),
        ({"--config": None}, "--config"),
        ({"--config": "/nowhere/config.json"}, "/nowhere/config.json"),
        ({"--config": "/none.json"}, "/none.json"),
        ({"--domain-labels": "a.io/zone;a.io/zone"}, "twice"),
        ({"--domain-labels": "a.io/zone;b.io/zone"}, "a.io/zone"),
        ({"--domain-labels": "a.io/zone;"}, "--domain-labels"),
        ({"--drivername": "x" * 54 + ".io"}, "63"),
        ({"--drivername": "ends.in.1"}, "--drivername"),
        ({"--domain": None}, "--domain"),
        ({"--domain": "zone=a"}, "region"),
        ({"--domain": "region=r1;zone=" + "x" * 64}, "zone"),
        ({"--domain": "region=r1;zone=a;rack=1"}, "rack"),
        ({"--orchestrator": "kubernetes"}, "--orchestrator"),
        ({"--orchestrator": "nomad"}, "--orchestrator"),
        ({"--backend": "ceph-rbd"}, "ceph-rbd"),
        ({"--data": "/dev/null/x"}, "--data"),
        ({"config": "{"}, "config.json"),
        ({"config": '{"version":3}'}, "version"),
        ({"config": '{"version":2,"pools":[{"poolName":"a"}]}'}, "capacity"),
        ({"config": '{"version":2,"colour":1}'}, "colour"),
    ],
)
def test_a_bad_start_is_one_sentence_and_exit_2(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    change: dict[str, str | None],
    word: str,
) -> None:
    """Wrong flags or a wrong file are refused at once, and nothing is created."""
    (tmp_path / "config.json").write_text(change.pop("config", None) or config())
    paths = {"unix:///SOCKET": f"unix://{tmp_path}/s", "CONFIG": f"{tmp_path}/config.json"}
    paths["DATA"] = f"{tmp_path}/data"
    flags = {**GOOD, **change}
    arguments = [
        part
        for name, value in flags.items()
        if value is not None
        for part in (name, paths.get(value, value))
    ]
    assert main(["csi", *arguments]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert word in error
    assert not (tmp_path / "s").exists()
    assert not (tmp_path / "data").exists()


@pytest.mark.system
async def test_the_driver_starts_serves_and_stops(tmp_path: Path) -> None:
    """All three services answer behind one socket; SIGTERM ends it with 0 and no socket."""
    program = Program(tmp_path)
    async with running(program) as caller:
        volume = await caller.create("v", topology=requirement([A]))
        info = await caller.client.call(methods.NODE_GET_INFO, csi.NodeGetInfoRequest())
        assert dict(info.accessible_topology.segments) == A
        await caller.stage(volume.volume_id)
        await caller.unstage(volume.volume_id)
        assert program.stop() == 0
    assert not program.socket.exists()
    code, report = program.check()
    assert (code, report["orphans"], report["missing"], report["snapshots"]) == (0, [], [], [])
    assert report["volumes"] == [
        {
            "id": volume.volume_id,
            "name": "v",
            "pool": "pool-a",
            "state": "created",
            "bytes": 16 * MIB,
        }
    ]


@pytest.mark.system
async def test_check_finds_what_does_not_agree(tmp_path: Path) -> None:
    """An image without an entry and an entry without an image are reported and left alone."""
    program = Program(tmp_path)
    program.config.write_text(config())
    with calling(tmp_path, privileged=False) as caller:
        volume = await caller.create("v", topology=requirement([A]))
    pools = program.data / "pools"
    (stored,) = pools.glob("*/vol-*")
    stray = stored.with_name("vol-" + "0" * 32 + ".img")
    stray.write_bytes(b"x")
    stored.rmdir()
    code, report = program.check()
    assert code == 1
    assert [entry["id"] for entry in report["missing"]] == [volume.volume_id]
    assert [orphan["uuid"] for orphan in report["orphans"]] == ["0" * 32]
    assert stray.exists()


@pytest.mark.system
def test_check_says_what_it_needs(tmp_path: Path) -> None:
    """Without a folder or a configuration ``check`` is one line on stderr and exit code 2."""
    for arguments in (["--config", "/nowhere"], ["--config", __file__], []):
        done = subprocess.run(
            [sys.executable, "-m", "zonewise", "csi", "check", *arguments, "--data", str(tmp_path)],
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)


@pytest.mark.system
async def test_a_changed_file_is_read_while_the_driver_runs(tmp_path: Path) -> None:
    """An added pool is used; with a broken file the last good one stays, and that is logged."""
    program = Program(tmp_path)
    program.config.write_text(config(pool("pool-a", "a", "64Mi")))
    async with running(program) as caller:
        assert await caller.free() == 64 * MIB
        program.config.write_text(config(pool("pool-a", "a", "64Mi"), pool("pool-b", "b", "32Mi")))
        await until_free(caller, 96 * MIB)
        assert (await caller.create("v", topology=requirement([B]))).volume_context[
            "pool"
        ] == "pool-b"
        program.config.write_text('{"version":2,"pools":[')
        await until(lambda: "the configuration stays as it was" in program.log)
        assert await caller.free() == 80 * MIB
        program.config.write_text(config(pool("pool-a", "a", "64Mi")))
        await until_free(caller, 64 * MIB)
    assert program.log.count("the configuration stays as it was") == 1


async def until_free(caller: Caller, bytes: int) -> None:
    """Wait until so much is free."""

    async def reached() -> bool:
        return await caller.free() == bytes

    await until(reached)


def test_the_swap_of_a_config_map_is_seen(tmp_path: Path) -> None:
    """A ConfigMap changes by swapping a link to its folder; the path of the file is the same."""
    for number, capacity in enumerate(("1Gi", "2Gi")):
        (tmp_path / f"..{number}").mkdir()
        (tmp_path / f"..{number}" / "config.json").write_text(config(pool("p", "a", capacity)))
    data = tmp_path / "..data"
    data.symlink_to("..0")
    (tmp_path / "config.json").symlink_to("..data/config.json")
    file = ConfigFile(tmp_path / "config.json", parse_domain_labels(LABELS, DRIVER))
    seen: list[int] = []
    file.on_change(lambda configuration: seen.append(configuration.pool_states["p"].capacity))
    file.reload()
    assert seen == []
    (tmp_path / "..new").symlink_to("..1")
    (tmp_path / "..new").rename(data)
    shutil.rmtree(tmp_path / "..0")
    file.reload()
    assert seen == [2 << 30]
    (tmp_path / "config.json").unlink()
    file.reload()
    assert file.problem is not None
    assert file.current.pool_states["p"].capacity == 2 << 30
    (tmp_path / "config.json").write_text(config(pool("p", "a", "2Gi")))
    file.reload()
    assert not file.problem
    assert seen == [2 << 30]


def test_a_configuration_may_come_later(tmp_path: Path) -> None:
    """Where a ConfigMap is mounted its file may come later; any other missing file is refused."""
    labels = parse_domain_labels(LABELS, DRIVER)
    path = tmp_path / "config.json"
    with pytest.raises(ConfigError, match="No such file"):
        ConfigFile(path, labels, may_be_missing=True)
    (tmp_path / "..2026").mkdir()
    (tmp_path / "..data").symlink_to("..2026")
    file = ConfigFile(path, labels, may_be_missing=True)
    news: list[bool] = []
    file.on_status_change(lambda: news.append(file.loaded))
    file.reload()
    assert (file.loaded, file.problem, file.current.pools, news) == (False, None, (), [])
    path.write_text('{"version": 2}')
    file.reload()
    assert (file.loaded, file.problem, news) == (True, None, [True])
    path.write_text(config(pool("p", "a", "1Gi")))
    file.reload()
    assert [spec.name for spec in file.current.pools] == ["p"]
    for wrong, may_come in ((tmp_path / "none" / "config.json", True), (tmp_path / "x", False)):
        with pytest.raises(ConfigError):
            ConfigFile(wrong, labels, may_be_missing=may_come)


@pytest.mark.system
async def test_labels_are_waited_for_and_followed(tmp_path: Path) -> None:
    """Without its label a node is not ready and logs it; a label is reported when it comes."""
    with api_running(tmp_path / "api") as api:
        labels = {"example.com/region": "r1"}
        node = {"metadata": {"name": "node-1", "labels": labels}}
        kubeconfig = str(tmp_path / "api" / "kubeconfig")
        program = Program(
            tmp_path, domain=("--orchestrator", "kubernetes", "--kubeconfig", kubeconfig)
        )
        async with running(program) as caller:
            api.ask("POST", "/api/v1/nodes", node)
            await until(lambda: "waiting for label example.com/zone" in program.log)
            probe = await caller.client.call(methods.PROBE, csi.ProbeRequest())
            assert not probe.ready.value
            call = caller.client.call(methods.NODE_GET_INFO, csi.NodeGetInfoRequest())
            assert await refused(call) is Code.UNAVAILABLE
            for zone in ("a", "b"):
                node = api.ask("GET", "/api/v1/nodes/node-1")
                node["metadata"]["labels"]["example.com/zone"] = zone
                api.ask("PUT", "/api/v1/nodes/node-1", node)
                await until(partial(reports_domain, caller, segments(zone)))
            probe = await caller.client.call(methods.PROBE, csi.ProbeRequest())
            assert probe.ready.value


async def reports_domain(caller: Caller, domain: dict[str, str]) -> bool:
    """Whether NodeGetInfo reports this domain."""
    try:
        info = await caller.client.call(methods.NODE_GET_INFO, csi.NodeGetInfoRequest())
    except CsiError as error:
        assert error.code is Code.UNAVAILABLE
        return False
    return dict(info.accessible_topology.segments) == domain


@pytest.mark.system
async def test_two_controllers_on_one_folder_make_one_volume_per_name(tmp_path: Path) -> None:
    """Two programs race for the same names with different preferences: one volume for each."""
    first = Program(tmp_path)
    (tmp_path / "second").mkdir()
    second = Program(tmp_path / "second")
    second.config.write_text(config())
    second.arguments = ("--data", str(first.data))
    async with running(first) as first_caller, running(second) as second_caller:

        async def create(caller: Caller, number: int, turn: int) -> str:
            terms = [A, B][turn:] + [A, B][:turn]
            while True:
                try:
                    answer = await caller.create(f"v{number}", topology=requirement([A, B], terms))
                except Exception as error:
                    assert "ABORTED" in str(error), error
                    await asyncio.sleep(0)
                else:
                    return answer.volume_id

        creations = [
            create(caller, number, turn)
            for number in range(20)
            for turn, caller in enumerate((first_caller, second_caller))
        ]
        ids = await asyncio.gather(*creations)
    assert ids[::2] == ids[1::2]
    code, report = first.check()
    assert (code, len(report["volumes"]), len(set(ids))) == (0, 20, 20)
    assert json.dumps(report)
