"""csi-sanity 5.6 against the program: every spec that it can run, mount and block."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.csi.sanity_settings import KINDS, RUNNABLE, SECRET
from tests.csi.scene import Program, config, files, left_behind, pool, running
from tools.csi.binary import CSI
from tools.realkube.binaries import find

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]


@pytest.mark.parametrize("access", ["mount", "block"])
@pytest.mark.parametrize("parameters", [False, True], ids=["config", "class"])
async def test_csi_sanity(tmp_path: Path, access: str, parameters: bool) -> None:
    """No spec fails, no secret is in the log, no mount, device or file is left behind."""
    binaries = find(CSI)
    if binaries is None:
        pytest.fail("csi-sanity is not built; `make e2e` or `python -m tools.csi build` does.")
    program = Program(tmp_path, arguments=("-vv",))
    pools = [pool("pool-a", "a", "16Gi"), pool("pool-b", "b", "16Gi")]
    program.config.write_text(config(*pools))
    secrets = tmp_path / "secrets.yaml"
    secrets.write_text("".join(f"{kind}:\n  key: {SECRET}\n" for kind in KINDS))
    (tmp_path / "paths").mkdir()
    arguments = [
        f"-csi.endpoint=unix://{program.socket}",
        f"-csi.mountdir={tmp_path}/paths/target",
        f"-csi.stagingdir={tmp_path}/paths/staging",
        f"-csi.testvolumesize={64 << 20}",
        f"-csi.testvolumeexpandsize={128 << 20}",
        f"-csi.testvolumeaccesstype={access}",
        f"-csi.secrets={secrets}",
        "-ginkgo.no-color",
        f"-ginkgo.json-report={tmp_path}/report.json",
    ]
    if parameters:
        listed = [{key: entry[key] for key in ("poolName", "domainSegments")} for entry in pools]
        file = tmp_path / "parameters.yaml"
        file.write_text(
            json.dumps({"pool": "pool-b", "topologyConstrainedPools": json.dumps(listed)})
        )
        arguments.append(f"-csi.testvolumeparameters={file}")
    async with running(program):
        before = files(program.data)
        done = await asyncio.to_thread(specs, [binaries.path("csi-sanity"), *arguments], tmp_path)
        after = files(program.data)
    (report,) = json.loads((tmp_path / "report.json").read_text())
    states = [spec["State"] for spec in report["SpecReports"] if spec["LeafNodeType"] == "It"]
    failed = [spec["LeafNodeText"] for spec in report["SpecReports"] if spec["State"] == "failed"]
    assert (failed, done.returncode) == ([], 0), done.stdout[-4000:]
    assert states.count("passed") == RUNNABLE
    assert SECRET not in program.log
    assert "asked" in program.log
    assert after == before
    assert left_behind(tmp_path) == []
    assert program.check()[1] == {"volumes": [], "snapshots": [], "orphans": [], "missing": []}


def specs(command: Sequence[str | Path], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run csi-sanity."""
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
