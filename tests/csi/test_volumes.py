"""Volumes as a caller sees them, on folders without root: the same journal, placement and codes."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from tests.csi.scene import (
    MIB,
    Caller,
    Mode,
    block_capability,
    calling,
    config,
    files,
    homes,
    mount_capability,
    of_snapshot,
    of_volume,
    pool,
    refused,
    requirement,
    segments,
)

from zonewise.csi.backends.folders.copies import make_folder
from zonewise.csi.driver import LOCK_FILE
from zonewise.csi.errors import Code, CsiError
from zonewise.csi.locks import Locks
from zonewise.csi.protocol import csi_pb2 as csi
from zonewise.csi.transport import methods

A, B, C = segments("a"), segments("b"), segments("c")


@pytest.fixture
def caller(tmp_path: Path) -> Iterator[Caller]:
    with calling(tmp_path, privileged=False) as caller:
        yield caller


async def test_a_volume_is_cut_from_the_preferred_domain(caller: Caller) -> None:
    """The first preferred term with a pool decides, and the answer has the pool's segments."""
    volume = await caller.create("v", topology=requirement([A, B, C], [B, C, A]))
    assert dict(volume.volume_context) == {"pool": "pool-b"}
    assert homes(volume) == [B]
    assert volume.capacity_bytes == 16 * MIB


async def test_without_a_requirement_a_volume_is_usable_everywhere(caller: Caller) -> None:
    """A volume without a requirement has no topology, rather than an empty term, which an API
    server would refuse.
    """
    volume = await caller.create("v")
    assert list(volume.accessible_topology) == []


async def test_volumes_without_a_requirement_fill_pools_evenly(caller: Caller) -> None:
    """Thirty equal volumes over three equal pools: ten in each."""
    pools = [(await caller.create(f"v{n}")).volume_context["pool"] for n in range(30)]
    assert {name: pools.count(name) for name in set(pools)} == {
        "pool-a": 10,
        "pool-b": 10,
        "pool-c": 10,
    }


async def test_the_same_name_is_the_same_volume_whatever_is_preferred_now(caller: Caller) -> None:
    """A retry with another preference finds the volume of the first attempt."""
    first = await caller.create("v", topology=requirement([A, B, C], [B, C, A]))
    again = await caller.create("v", topology=requirement([A, B, C], [C, A, B]))
    assert again == first
    assert len(await caller.volumes()) == 1


@pytest.mark.parametrize(
    "change",
    [
        {"size": 32 * MIB},
        {"size": 0, "limit": 8 * MIB},
        {"parameters": {"crossDomain": "copy"}},
        {"parameters": {"placement": "balanced"}},
        {"topology": requirement([C])},
    ],
)
async def test_the_same_name_for_something_else_is_refused(
    caller: Caller, change: dict[str, object]
) -> None:
    """A name that is taken by a volume of another shape is ALREADY_EXISTS."""
    await caller.create("v", topology=requirement([B]))
    changed = {"topology": requirement([B]), **change}
    assert await refused(caller.create("v", **changed)) is Code.ALREADY_EXISTS  # type: ignore[arg-type]


async def test_a_full_domain_is_refused_and_nothing_stays(caller: Caller) -> None:
    """A create in a full domain is RESOURCE_EXHAUSTED, which moves the pod, and leaves no entry."""
    await caller.create("big", size=1000 * MIB, topology=requirement([B]))
    code = await refused(caller.create("more", size=100 * MIB, topology=requirement([B])))
    assert code is Code.RESOURCE_EXHAUSTED
    assert await caller.free(B) == 24 * MIB
    assert len(await caller.volumes()) == 1
    elsewhere = await caller.create("more", size=100 * MIB, topology=requirement([B, C], [B]))
    assert elsewhere.volume_context["pool"] == "pool-c"


async def test_bytes_are_promised_once_and_given_back(caller: Caller) -> None:
    """Free space is capacity less what is promised to volumes and snapshots."""
    before = await caller.free(A)
    volume = await caller.create("v", topology=requirement([A]))
    snapshot = await caller.snapshot("s", volume.volume_id)
    assert await caller.free(A) == before - 32 * MIB
    await caller.expand(volume.volume_id, 32 * MIB)
    assert await caller.free(A) == before - 48 * MIB
    await caller.delete(volume.volume_id)
    await caller.delete_snapshot(snapshot.snapshot_id)
    assert await caller.free(A) == before


async def test_room_is_what_a_volume_of_the_class_could_get(caller: Caller) -> None:
    """With placement balanced or default-pool every zone has the same room, and a zone without a
    pool that of all; with placement: preferred it has none.
    """
    await caller.create("v", size=24 * MIB, topology=requirement([A]))

    async def free(term: dict[str, str], **parameters: str) -> int:
        request = csi.GetCapacityRequest(parameters=parameters)
        request.accessible_topology.segments.update(term)
        return (await caller.client.call(methods.GET_CAPACITY, request)).available_capacity

    assert await free(A) == await free(A, placement="preferred") == 1000 * MIB
    assert await free(A, placement="balanced") == 3048 * MIB
    assert await free(B, placement="default-pool", pool="pool-a") == 1000 * MIB
    assert await free(segments("new")) == 3048 * MIB
    assert await free(segments("new"), placement="preferred") == 0


async def test_racing_creates_never_promise_the_same_bytes_twice(caller: Caller) -> None:
    """Twenty volumes race for room for ten: exactly ten are made."""
    creations = [
        caller.create(f"v{n}", size=100 * MIB, topology=requirement([A])) for n in range(20)
    ]
    results = await asyncio.gather(*creations, return_exceptions=True)
    assert sum(isinstance(answer, csi.Volume) for answer in results) == 10
    assert await caller.free(A) == 24 * MIB


async def test_deleting_is_idempotent_and_unknown_ids_are_gone(caller: Caller) -> None:
    """Deleting any id succeeds, also twice and for unknown ones."""
    volume = await caller.create("v")
    for id in (volume.volume_id, volume.volume_id, "garbage", "vol-0", "x" * 300):
        await caller.delete(id)
        await caller.delete_snapshot(id)
    assert await refused(caller.delete("")) is Code.INVALID_ARGUMENT
    assert await caller.volumes() == []


async def test_with_everything_deleted_the_data_folder_is_as_when_new(caller: Caller) -> None:
    """Volumes, snapshots and clones leave no file and no folder behind."""
    data = caller.folder / "data"
    before = files(data)
    volume = await caller.create("v")
    snapshot = await caller.snapshot("s", volume.volume_id)
    clone = await caller.create("c", source=of_volume(volume.volume_id))
    restored = await caller.create("r", source=of_snapshot(snapshot.snapshot_id))
    assert files(data) != before
    await caller.delete_snapshot(snapshot.snapshot_id)
    for existing in (volume, clone, restored):
        await caller.delete(existing.volume_id)
    assert files(data) == before


async def test_copies_stay_in_their_domain_unless_the_class_allows_more(caller: Caller) -> None:
    """A clone for another zone is RESOURCE_EXHAUSTED, or a copy with crossDomain: copy."""
    volume = await caller.create("v", topology=requirement([A]))
    source = of_volume(volume.volume_id)
    code = await refused(caller.create("c", source=source, topology=requirement([B])))
    assert code is Code.RESOURCE_EXHAUSTED
    copied = await caller.create(
        "c", source=source, topology=requirement([B]), parameters={"crossDomain": "copy"}
    )
    assert copied.volume_context["pool"] == "pool-b"
    assert copied.content_source.volume.volume_id == volume.volume_id


async def test_a_copy_has_what_was_in_its_source(caller: Caller) -> None:
    """Files of a volume are in its clones and in what is restored, and stay as they were."""
    volume = await caller.create("v")
    target = await caller.publish(volume.volume_id)
    (target / "file").write_text("before")
    snapshot = await caller.snapshot("s", volume.volume_id)
    (target / "file").write_text("after")
    await caller.unpublish(volume.volume_id)
    await caller.delete(volume.volume_id)
    restored = await caller.create("r", source=of_snapshot(snapshot.snapshot_id))
    target = await caller.publish(restored.volume_id)
    assert (target / "file").read_text() == "before"
    await caller.unpublish(restored.volume_id)


async def test_sources_that_are_not_there_are_not_found(caller: Caller) -> None:
    """Any text may be an id; an unknown one is NOT_FOUND."""
    for source in (of_volume("free text"), of_snapshot("vol-" + "0" * 32)):
        assert await refused(caller.create("v", source=source)) is Code.NOT_FOUND
    assert await refused(caller.snapshot("s", "nothing")) is Code.NOT_FOUND
    assert await caller.volumes() == []


async def test_a_finished_copy_is_found_again_without_its_source(caller: Caller) -> None:
    """A retry after the source was deleted gets the volume, not NOT_FOUND."""
    volume = await caller.create("v")
    source = of_volume(volume.volume_id)
    clone = await caller.create("c", source=source)
    await caller.delete(volume.volume_id)
    assert await caller.create("c", source=source) == clone


async def test_a_finished_copy_is_found_again_after_its_source_grew(caller: Caller) -> None:
    """A retry gets the volume; only a new copy would be too small for the source."""
    volume = await caller.create("v")
    source = of_volume(volume.volume_id)
    clone = await caller.create("c", source=source)
    await caller.expand(volume.volume_id, 32 * MIB)
    assert await caller.create("c", source=source) == clone
    assert await refused(caller.create("d", source=source)) is Code.OUT_OF_RANGE


@pytest.mark.parametrize(
    "parameters",
    [
        {"pool": "pool-b"},
        {"poolSet": "set"},
        {"pool": "pool-b", "placement": "default-pool"},
        {
            "topologyConstrainedPools": json.dumps(
                [{"poolName": "pool-b", "domainSegments": pool("", "b")["domainSegments"]}]
            )
        },
    ],
)
async def test_a_volume_is_found_again_without_its_pool_in_the_configuration(
    tmp_path: Path, parameters: dict[str, str]
) -> None:
    """A retry gets the volume: after INVALID_ARGUMENT the caller would never delete it."""
    with calling(tmp_path, config(poolSets={"set": ["pool-b"]}), privileged=False) as caller:
        volume = await caller.create("v", parameters=parameters)
    with calling(tmp_path, config(pool("pool-a", "a")), privileged=False) as caller:
        assert await caller.create("v", parameters=parameters) == volume
        assert await refused(caller.create("w", parameters=parameters)) is Code.INVALID_ARGUMENT
        request = csi.GetCapacityRequest(parameters=parameters)
        code = await refused(caller.client.call(methods.GET_CAPACITY, request))
        assert code is Code.INVALID_ARGUMENT
        assert await caller.volumes() == [volume.volume_id]


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ({"size": -1}, Code.OUT_OF_RANGE),
        ({"size": 8 * MIB, "limit": 4 * MIB}, Code.OUT_OF_RANGE),
        ({"capability": csi.VolumeCapability()}, Code.INVALID_ARGUMENT),
        ({"capability": block_capability()}, Code.INVALID_ARGUMENT),
        ({"capability": mount_capability(fs_type="ext4")}, Code.INVALID_ARGUMENT),
        ({"capability": mount_capability(Mode.UNKNOWN)}, Code.INVALID_ARGUMENT),
        ({"parameters": {"colour": "red"}}, Code.INVALID_ARGUMENT),
        ({"parameters": {"topologyConstrainedPools": "[{}]"}}, Code.INVALID_ARGUMENT),
        ({"parameters": {"pool": "nowhere"}}, Code.INVALID_ARGUMENT),
        ({"parameters": {"poolSet": "nowhere"}}, Code.INVALID_ARGUMENT),
        ({"source": of_volume("")}, Code.INVALID_ARGUMENT),
        ({"source": csi.VolumeContentSource()}, Code.INVALID_ARGUMENT),
    ],
)
async def test_bad_requests_are_refused_and_change_nothing(
    caller: Caller, arguments: dict[str, object], code: Code
) -> None:
    """Each bad request is refused with its code, and the journal stays empty."""
    assert await refused(caller.create("v", **arguments)) is code  # type: ignore[arg-type]
    assert await caller.volumes() == []


async def test_names_have_the_length_the_protocol_allows(caller: Caller) -> None:
    """A name of 128 bytes is accepted, one of 129 bytes and an empty one are not."""
    await caller.create("x" * 128)
    for name in ("", "x" * 129):
        assert await refused(caller.create(name)) is Code.INVALID_ARGUMENT


@pytest.mark.parametrize("name", ["a\x00", "\x1b[31m", "a\x7f", "\x9b1m"])
async def test_names_have_no_control_characters(caller: Caller, name: str) -> None:
    """Names with control characters, which are shown to people, are refused: the protocol bans
    them.
    """
    assert await refused(caller.create(name)) is Code.INVALID_ARGUMENT
    volume = await caller.create("tab\tand é")
    assert await refused(caller.snapshot(name, volume.volume_id)) is Code.INVALID_ARGUMENT
    await caller.delete(volume.volume_id)


async def test_a_class_chooses_among_its_own_pools(tmp_path: Path) -> None:
    """Pools of the class, a pool set by name, and the default pool are each obeyed."""
    text = config(
        pool("pool-a", "a"),
        pool("pool-b", "b"),
        pool("spare", "b"),
        poolSets={
            "cheap": [{"poolName": "spare", "domainSegments": pool("", "b")["domainSegments"]}]
        },
    )
    listed = json.dumps([{"poolName": "spare", "domainSegments": pool("", "b")["domainSegments"]}])
    with calling(tmp_path, text, privileged=False) as caller:
        for number, parameters in enumerate(
            (
                {"topologyConstrainedPools": listed},
                {"poolSet": "cheap"},
                {"pool": "spare", "placement": "default-pool"},
            )
        ):
            volume = await caller.create(f"v{number}", parameters=parameters)
            assert volume.volume_context["pool"] == "spare"


async def test_lists_come_in_pages_and_a_foreign_token_is_aborted(caller: Caller) -> None:
    """Pages follow each other, and an invalid token is ABORTED, so that the caller starts again."""
    created = {(await caller.create(f"v{n}")).volume_id for n in range(5)}
    listed: list[str] = []
    token = ""
    for _ in range(3):
        answer = await caller.client.call(
            methods.LIST_VOLUMES, csi.ListVolumesRequest(max_entries=2, starting_token=token)
        )
        listed += [entry.volume.volume_id for entry in answer.entries]
        token = answer.next_token
    assert (set(listed), len(listed), token) == (created, 5, "")
    foreign = csi.ListVolumesRequest(starting_token="invalid-token")
    assert await refused(caller.client.call(methods.LIST_VOLUMES, foreign)) is Code.ABORTED


async def test_get_and_validate(caller: Caller) -> None:
    """ControllerGetVolume returns what CreateVolume did; Validate refuses other capabilities."""
    volume = await caller.create("v", topology=requirement([A]))
    answer = await caller.client.call(
        methods.CONTROLLER_GET_VOLUME, csi.ControllerGetVolumeRequest(volume_id=volume.volume_id)
    )
    assert answer.volume == volume

    async def validated(id: str, capability: csi.VolumeCapability) -> bool:
        verdict = await caller.client.call(
            methods.VALIDATE_VOLUME_CAPABILITIES,
            csi.ValidateVolumeCapabilitiesRequest(volume_id=id, volume_capabilities=[capability]),
        )
        assert verdict.HasField("confirmed") != bool(verdict.message)
        return verdict.HasField("confirmed")

    assert await validated(volume.volume_id, mount_capability())
    assert not await validated(volume.volume_id, block_capability())
    assert await refused(validated("nothing", mount_capability())) is Code.NOT_FOUND


async def test_only_what_a_volume_was_made_with_is_confirmed(caller: Caller) -> None:
    """Validate confirms the context and the parameters of the volume, and no others."""
    parameters = {"pool": "pool-a", "csi.storage.k8s.io/pvc/name": "data"}
    volume = await caller.create("v", parameters=parameters)

    async def confirmed(**more: Mapping[str, str]) -> bool:
        request = csi.ValidateVolumeCapabilitiesRequest(
            volume_id=volume.volume_id, volume_capabilities=[mount_capability()], **more
        )
        verdict = await caller.client.call(methods.VALIDATE_VOLUME_CAPABILITIES, request)
        assert verdict.HasField("confirmed") != bool(verdict.message)
        return verdict.HasField("confirmed")

    identity = {"storage.kubernetes.io/csiProvisionerIdentity": "x"}
    for context in ({}, identity, volume.volume_context, {**volume.volume_context, **identity}):
        assert await confirmed(volume_context=context, parameters=parameters)
    for context in (
        {"pool": "pool-b"},
        {"dataPool": "x"},
        {**volume.volume_context, "dataPool": "x"},
    ):
        assert not await confirmed(volume_context=context)
    assert await confirmed(parameters={"csi.storage.k8s.io/pvc/name": "other"})
    assert not await confirmed(parameters={"pool": "pool-b"})
    assert await refused(confirmed(parameters={"colour": "red"})) is Code.INVALID_ARGUMENT


async def test_snapshots_have_a_topology_and_are_found_by_source(caller: Caller) -> None:
    """A snapshot stays in its source's pool; lists find it by id and by source."""
    volume = await caller.create("v", topology=requirement([B]))
    snapshot = await caller.snapshot("s", volume.volume_id)
    assert [dict(term.segments) for term in snapshot.accessible_topology] == [B]
    assert (snapshot.ready_to_use, snapshot.size_bytes) == (True, volume.capacity_bytes)
    assert await caller.snapshot("s", volume.volume_id) == snapshot
    other = await caller.create("other")
    assert await refused(caller.snapshot("s", other.volume_id)) is Code.ALREADY_EXISTS
    code = await refused(caller.snapshot("t", volume.volume_id, requirement([C])))
    assert code is Code.RESOURCE_EXHAUSTED

    async def listed(**filters: str) -> list[str]:
        answer = await caller.client.call(
            methods.LIST_SNAPSHOTS,
            csi.ListSnapshotsRequest(**filters),  # type: ignore[arg-type]
        )
        return [entry.snapshot.snapshot_id for entry in answer.entries]

    mine = [snapshot.snapshot_id]
    assert await listed() == await listed(snapshot_id=mine[0]) == mine
    assert await listed(source_volume_id=volume.volume_id) == mine
    assert await listed(source_volume_id=other.volume_id) == await listed(snapshot_id="x") == []
    request = csi.GetSnapshotRequest(snapshot_id=mine[0])
    assert (await caller.client.call(methods.GET_SNAPSHOT, request)).snapshot == snapshot


async def test_expanding_beyond_the_pool_changes_nothing(caller: Caller) -> None:
    """More than is free is RESOURCE_EXHAUSTED; a smaller size than now changes nothing."""
    volume = await caller.create("v", topology=requirement([A]))
    assert await refused(caller.expand(volume.volume_id, 2000 * MIB)) is Code.RESOURCE_EXHAUSTED
    assert (await caller.expand(volume.volume_id, 1)).capacity_bytes == 16 * MIB
    assert await refused(caller.expand(volume.volume_id, 0)) is Code.INVALID_ARGUMENT
    assert await refused(caller.expand("nothing", MIB)) is Code.NOT_FOUND


async def test_a_driver_without_domain_labels_has_no_topology(tmp_path: Path) -> None:
    """Without labels there is no capability and no segments, and requirements are ignored."""
    with calling(tmp_path, privileged=False, labels="") as caller:
        answer = await caller.client.call(
            methods.GET_PLUGIN_CAPABILITIES, csi.GetPluginCapabilitiesRequest()
        )
        types = {
            capability.service.type
            for capability in answer.capabilities
            if capability.HasField("service")
        }
        assert types == {csi.PluginCapability.Service.CONTROLLER_SERVICE}
        info = await caller.client.call(methods.NODE_GET_INFO, csi.NodeGetInfoRequest())
        assert not info.HasField("accessible_topology")
        assert not (await caller.create("v")).accessible_topology


async def test_a_foreign_folder_is_neither_adopted_nor_removed(
    caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder with the new uuid and another mark stays; the volume gets another uuid."""
    numbers = iter([uuid.UUID(int=1), uuid.UUID(int=2)])
    monkeypatch.setattr("zonewise.csi.sqlite_journal.uuid.uuid4", lambda: next(numbers))
    strange = caller.folder / "data" / "pools" / "pool-a" / f"vol-{1:032x}"
    make_folder(strange, "another", None)
    (strange / "file").write_text("precious")
    volume = await caller.create("v", topology=requirement([A]))
    assert volume.volume_id == f"vol-{2:032x}"
    await caller.delete(volume.volume_id)
    assert (strange / "file").read_text() == "precious"


async def test_two_calls_about_one_volume_are_not_done_at_once(caller: Caller) -> None:
    """A second call about a volume is ABORTED; a volume that is being copied is not deleted."""
    volume = await caller.create("v")
    locks = Locks(caller.folder / "data" / LOCK_FILE)
    with locks.hold("volume v"):
        assert await refused(caller.create("v")) is Code.ABORTED
        assert await refused(caller.delete(volume.volume_id)) is Code.ABORTED
    with locks.hold("volume v", shared=True):
        assert await refused(caller.delete(volume.volume_id)) is Code.ABORTED
        await caller.snapshot("s", volume.volume_id)
    await caller.delete(volume.volume_id)


async def test_a_class_may_take_pools_by_their_labels(tmp_path: Path) -> None:
    """Without a list, pools are used that are labelled with a domain: here, that the configuration
    declares in one. Placement, capacity and the lists are as with a list.
    """
    everywhere = {"poolName": "journal", "capacity": "4Gi"}
    text = config(pool("pool-a", "a"), pool("pool-b", "b"), everywhere)
    labelled = {"poolLabels": "all", "pool": "journal"}
    with calling(tmp_path, text, privileged=False) as caller:

        async def free(term: dict[str, str], **more: str) -> int:
            request = csi.GetCapacityRequest(parameters=labelled | more)
            request.accessible_topology.segments.update(term)
            return (await caller.client.call(methods.GET_CAPACITY, request)).available_capacity

        volume = await caller.create("v", topology=requirement([A, B], [B]), parameters=labelled)
        assert volume.volume_context["pool"] == "pool-b"
        assert homes(volume) == [B]
        assert await caller.volumes() == [volume.volume_id]
        assert (await free(A), await free(B)) == (1024 * MIB, 1008 * MIB)
        assert await free(C) == 2032 * MIB
        assert await free(C, placement="preferred") == 0
        new = await caller.create("new", topology=requirement([A, C], [C]), parameters=labelled)
        assert (new.volume_context["pool"], homes(new)) == ("pool-a", [])
        create = caller.create("w", parameters={"poolLabels": "tier=fast"})
        assert await refused(create) is Code.FAILED_PRECONDITION
        assert await refused(free(A, poolLabels="tier=fast")) is Code.FAILED_PRECONDITION


async def test_a_volume_is_found_again_when_no_pool_is_labelled_any_more(tmp_path: Path) -> None:
    """A repeated request gets its volume; a new one is refused with what is missing."""
    labelled = {"poolLabels": "all"}
    with calling(tmp_path, privileged=False) as caller:
        volume = await caller.create("v", topology=requirement([A]), parameters=labelled)
    text = config({"poolName": "pool-a", "capacity": "1Gi"})
    with calling(tmp_path, text, privileged=False) as caller:
        again = await caller.create("v", topology=requirement([A]), parameters=labelled)
        assert again == volume
        with pytest.raises(CsiError, match="region or zone; no pool has any label"):
            await caller.create("w", topology=requirement([A]), parameters=labelled)


@pytest.mark.parametrize("health", [0, 0.5])
async def test_a_dead_pool_takes_neither_snapshots_nor_larger_volumes(
    tmp_path: Path, health: float
) -> None:
    """In a pool of health 0 a snapshot and an expansion are UNAVAILABLE and say so, and what exists
    is still answered; with some health both are made.
    """
    with calling(tmp_path, privileged=False) as caller:
        id = (await caller.create("v", topology=requirement([A]))).volume_id
        known = await caller.snapshot("known", id)
    text = config(pool("pool-a", "a", health=health), pool("pool-b", "b"))
    with calling(tmp_path, text, privileged=False) as caller:
        for call in (caller.snapshot("s", id), caller.expand(id, 32 * MIB)):
            if health:
                await call
                continue
            with pytest.raises(CsiError, match=r"pool pool-a is not alive, its health is 0") as e:
                await call
            assert e.value.code is Code.UNAVAILABLE
        assert await caller.snapshot("known", id) == known
        assert (await caller.expand(id, 16 * MIB)).capacity_bytes == (32 if health else 16) * MIB
        listed = await caller.client.call(methods.LIST_SNAPSHOTS, csi.ListSnapshotsRequest())
        assert len(listed.entries) == (2 if health else 1)
