"""``zonewise explain volume|pvc`` on a dump."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.cli.run_program import here

KEY = "topology.csi.zonewise.io/zone"
DUMP = f"""
apiVersion: v1
kind: List
items:
- {{apiVersion: v1, kind: Node, metadata: {{name: n-a, labels: {{{KEY}: a}}}}}}
- apiVersion: storage.k8s.io/v1
  kind: CSINode
  metadata: {{name: n-a}}
  spec: {{drivers: [{{name: csi.zonewise.io, nodeID: n-a, topologyKeys: [{KEY}]}}]}}
- apiVersion: storage.k8s.io/v1
  kind: StorageClass
  metadata: {{name: zonal}}
  provisioner: csi.zonewise.io
  volumeBindingMode: Immediate
- apiVersion: v1
  kind: ConfigMap
  metadata: {{name: csi, namespace: zonewise-system}}
  data:
    config.json: |
      {{"version": 2, "pools": [{{"poolName": "pool-a", "capacity": "1Gi",
        "domainSegments": [{{"domainLabel": "zone", "value": "a"}}]}}]}}
- apiVersion: v1
  kind: PersistentVolumeClaim
  metadata: {{name: data, namespace: shop, uid: u}}
  spec:
    storageClassName: zonal
    accessModes: [ReadWriteOnce]
    resources: {{requests: {{storage: 2Gi}}}}
- apiVersion: v1
  kind: Event
  metadata: {{name: e, namespace: shop}}
  involvedObject: {{kind: PersistentVolumeClaim, namespace: shop, name: data}}
  reason: ProvisioningFailed
  message: no room
  lastTimestamp: "2026-01-01T00:00:00Z"
"""


def test_a_claim_of_a_dump_is_explained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The page and the JSON have the pools that were tried, the reasons and the events."""
    file = tmp_path / "dump.yaml"
    file.write_text(DUMP)
    result = here(capsys, "explain", "pvc", "data", "-n", "shop", "-f", file)
    assert result.code == 0, result.err
    assert "Claim data has no volume" in result.out
    assert "ProvisioningFailed: no room" in result.out
    assert "What would help" in result.out
    plain = json.loads(
        here(capsys, "explain", "pvc", "data", "-n", "shop", "-f", file, "-o", "json").out
    )
    assert plain["tried"][0]["pool"] == "pool-a"
    assert plain["events"] == ["ProvisioningFailed: no room"]
    assert (plain["volume"], plain["phase"]) == (None, "Pending")


def test_unknown_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The error about an unknown claim names another namespace that has a claim of this name."""
    file = tmp_path / "dump.yaml"
    file.write_text(DUMP)
    missing = here(capsys, "explain", "pvc", "data", "-f", file)
    assert missing.code == 1
    assert "there is one in namespace shop: add -n shop" in missing.sentence()
    assert (
        "there is no PersistentVolume v"
        in here(capsys, "explain", "volume", "v", "-f", file).sentence()
    )


@pytest.mark.parametrize(
    ("what", "name"),
    [("volume", "persistentvolume/v"), ("volume", "pv/v"), ("pv", "persistentvolumes/v")],
)
def test_a_name_as_kubectl_prints_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], what: str, name: str
) -> None:
    """The kind may precede the name of a volume or a claim."""
    file = tmp_path / "dump.yaml"
    file.write_text(DUMP)
    result = here(capsys, "explain", what, name, "-f", file)
    assert result.code == 1
    assert "there is no PersistentVolume v;" in result.sentence()
    claim = ("persistentvolumeclaim/data", "-n", "shop", "-f", file)
    assert here(capsys, "explain", "pvc", *claim).code == 0
