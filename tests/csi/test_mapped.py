"""How images are mapped: command lines, the client's configuration, the program's output."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from zonewise.csi.backends.ceph import client_conf
from zonewise.csi.backends.ceph.rbd.mapped_devices import (
    MappedDevice,
    MappedImages,
    parse_devices,
    parse_mounter,
)
from zonewise.csi.errors import Code, CsiError
from zonewise.storage.configuration import CephCluster

CLUSTER = CephCluster("c", ("10.0.0.1:3300", "v2:10.0.0.2:4000"), "zonewise", "/etc/key")
HERE = {"region": "r1", "zone": "a"}
HEAD = ["-c", f"/data/rbd/ceph.{CLUSTER.cluster_id}.conf", "--id", "zonewise", "device"]


def images(mounter: str, cluster: CephCluster = CLUSTER) -> MappedImages:
    """Images of one kind of device."""
    return MappedImages(mounter, cluster, Path("/data/rbd"), "zw-vol-")


def test_krbd_is_configured_by_options() -> None:
    """Options: a client of its own, no udev, the monitors' protocol, and the read location."""
    arguments = images("krbd").map_arguments("rbd-a", "zw-vol-1", readonly=False, read_domain=HERE)
    options = (
        "noshare,noudev,ms_mode=prefer-crc,read_from_replica=localize,"
        "crush_location=region:r1|zone:a"
    )
    assert arguments == [
        *(*HEAD, "map", "--device-type", "krbd", "--options", options, "rbd-a/zw-vol-1")
    ]
    read = images("krbd").map_arguments("rbd-a", "zw-vol-1", readonly=True, read_domain={})
    assert read[7:] == [
        *("krbd", "--options", "noshare,noudev,ms_mode=prefer-crc"),
        *("--read-only", "rbd-a/zw-vol-1"),
    ]


def test_the_first_protocol_is_krbds_own() -> None:
    """If a monitor may speak the first protocol, no ms_mode is given: old kernels know no other."""
    for monitors in (("10.0.0.1:6789",), ("10.0.0.1:3300", "10.0.0.2:6789")):
        cluster = CephCluster("c", monitors, "zonewise", "/etc/key")
        assert client_conf.kernel_options(cluster) == ["noshare", "noudev"]
    both = CephCluster("c", ("[v2:10.0.0.1:3300,v1:10.0.0.1:6789]",), "zonewise", "/etc/key")
    assert client_conf.kernel_options(both) == ["noshare", "noudev"]


def test_nbd_reads_the_configuration() -> None:
    """rbd-nbd uses librbd, so there are no options to map or unmap."""
    arguments = images("rbd-nbd").map_arguments(
        "rbd-a", "zw-vol-1", readonly=True, read_domain=HERE
    )
    assert arguments == [*HEAD, "map", "--device-type", "nbd", "--read-only", "rbd-a/zw-vol-1"]
    device = Path("/dev/nbd3")
    for force in (False, True):
        unmap = images("rbd-nbd").unmap_arguments(device, force=force)
        assert unmap == [*HEAD, "unmap", "--device-type", "nbd", "/dev/nbd3"]


@pytest.mark.parametrize(("force", "options"), [(False, "noudev"), (True, "noudev,force")])
def test_krbd_is_unmapped_by_device(force: bool, options: str) -> None:
    """krbd unmaps a device, not an image, which may be mapped twice; by force only if requested."""
    arguments = images("krbd").unmap_arguments(Path("/dev/rbd0"), force=force)
    assert arguments == [*HEAD, "unmap", "--device-type", "krbd", "--options", options, "/dev/rbd0"]


def test_what_the_program_prints() -> None:
    """krbd prints ``name``, nbd ``image``; snapshots are ignored; an empty output is no device."""
    krbd = {
        "id": "0",
        "pool": "p",
        "namespace": "",
        "name": "i",
        "snap": "-",
        "device": "/dev/rbd0",
    }
    nbd = {"id": 77, "pool": "p", "namespace": "", "image": "i", "snap": "-", "device": "/dev/nbd0"}
    assert parse_devices(json.dumps([krbd, {**krbd, "snap": "s"}])) == [
        MappedDevice("p", "i", Path("/dev/rbd0"))
    ]
    assert parse_devices(json.dumps([nbd])) == [MappedDevice("p", "i", Path("/dev/nbd0"))]
    assert parse_devices(json.dumps({"0": krbd})) == parse_devices(json.dumps([krbd]))
    assert parse_devices("") == parse_devices("[]") == []


def test_a_mounter_is_one_of_three() -> None:
    """An empty value is the default; an unknown one is refused with the known ones."""
    assert [parse_mounter(text) for text in ("", "krbd", "rbd-nbd")] == [
        "rbd-fuse",
        "krbd",
        "rbd-nbd",
    ]
    with pytest.raises(CsiError, match="'nbd' is not known; known are rbd-fuse, krbd") as raised:
        parse_mounter("nbd")
    assert raised.value.code is Code.INVALID_ARGUMENT


def test_the_location_of_a_client_is_written_only_if_requested(tmp_path: Path) -> None:
    """crush_location and the policy are written together or not at all; the key is a file."""
    plain = client_conf.render_conf(CLUSTER)
    assert "mon_host = v2:10.0.0.1:3300,v2:10.0.0.2:4000\n" in plain
    assert "keyfile = /etc/key\n" in plain
    assert "crush_location" not in plain
    path = client_conf.write_conf(tmp_path / "new", CLUSTER, HERE)
    assert path.read_text() == plain + (
        "crush_location = region=r1 zone=a\nrbd_read_from_replica_policy = localize\n"
    )
    assert [file.name for file in path.parent.iterdir()] == [f"ceph.{CLUSTER.cluster_id}.conf"]
