"""csi-sanity against the driver on a real Ceph: RBD for mounts and devices, CephFS for mounts."""

from __future__ import annotations

import asyncio
import json
import subprocess
from pathlib import Path

import pytest
from tests.ceph.scene import CephFsProgram, CephProgram, config, parameters
from tests.csi.sanity_settings import KINDS, RUNNABLE, SECRET
from tests.csi.scene import left_behind, running
from tools.ceph.cluster import CephCluster
from tools.csi.binary import CSI
from tools.realkube.binaries import find

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]


@pytest.mark.parametrize(("kind", "access"), [("rbd", "mount"), ("rbd", "block"), ("fs", "mount")])
async def test_csi_sanity(ceph: CephCluster, tmp_path: Path, kind: str, access: str) -> None:
    """No spec fails, neither secret nor key is in the log, no image, mount or device is left."""
    binaries = find(CSI)
    if binaries is None:
        pytest.fail("csi-sanity is not built; `make e2e` or `python -m tools.csi build` does.")
    program_type = CephFsProgram if kind == "fs" else CephProgram
    program = program_type(tmp_path, arguments=("-vv",))
    program.config.write_text(config(ceph))
    secrets = tmp_path / "secrets.yaml"
    secrets.write_text("".join(f"{kind}:\n  key: {SECRET}\n" for kind in KINDS))
    given = tmp_path / "parameters.yaml"
    given.write_text(json.dumps(parameters(kind)))
    (tmp_path / "paths").mkdir()
    arguments = [
        f"-csi.endpoint=unix://{program.socket}",
        f"-csi.mountdir={tmp_path}/paths/target",
        f"-csi.stagingdir={tmp_path}/paths/staging",
        f"-csi.testvolumesize={64 << 20}",
        f"-csi.testvolumeexpandsize={128 << 20}",
        f"-csi.testvolumeaccesstype={access}",
        f"-csi.testvolumeparameters={given}",
        f"-csi.secrets={secrets}",
        "-ginkgo.no-color",
        f"-ginkgo.json-report={tmp_path}/report.json",
    ]
    async with running(program):
        done = await asyncio.to_thread(
            subprocess.run,
            [str(binaries.path("csi-sanity")), *arguments],
            capture_output=True,
            text=True,
            check=False,
            cwd=tmp_path,
        )
    (report,) = json.loads((tmp_path / "report.json").read_text())
    states = [spec["State"] for spec in report["SpecReports"] if spec["LeafNodeType"] == "It"]
    failed = [spec["LeafNodeText"] for spec in report["SpecReports"] if spec["State"] == "failed"]
    assert (failed, done.returncode) == ([], 0), done.stdout[-4000:]
    assert states.count("passed") == RUNNABLE
    assert SECRET not in program.log
    assert ceph.key_file.read_text().strip() not in program.log
    assert left_behind(tmp_path) == []
    _, remaining = program.check()
    remaining.pop("trash", None)
    assert not any(remaining.values())
