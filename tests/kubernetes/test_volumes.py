"""Claims and volumes: kube-controller-manager and ours bind, release and report the same."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.contract.embedded import embedded
from tests.kubernetes.sides import Obj, Side, both, timeless, until

from tools import realkube as real

pytestmark = [pytest.mark.real, pytest.mark.asyncio]

CLAIMS, VOLUMES, CLASSES = "persistentvolumeclaims", "persistentvolumes", "storageclasses"
UNSAID = frozenset({"uid", "resourceVersion", "creationTimestamp", "managedFields", "generation"})


@pytest.fixture(scope="module")
def ours() -> Iterator[Path]:
    """Our cluster without nodes; its kubeconfig."""
    with embedded(content="--empty") as kubeconfig:
        yield kubeconfig


def spec(size: str = "1Gi", **fields: Any) -> Obj:
    """The spec of a claim."""
    requests = {"resources": {"requests": {"storage": size}}}
    return {"accessModes": ["ReadWriteOnce"], **requests, **fields}


def disk(size: str = "2Gi", **fields: Any) -> Obj:
    """A volume that was created by hand."""
    return {
        "capacity": {"storage": size},
        "accessModes": ["ReadWriteOnce"],
        "persistentVolumeReclaimPolicy": "Retain",
        "hostPath": {"path": "/tmp"},
        **fields,
    }


async def phase(there: Side, resource: str, expected: str) -> Obj:
    """Wait for the phase of a claim or volume; returns it without identity and times."""

    async def look() -> Obj | None:
        obj = await there.send("GET", resource)
        return obj if (obj.get("status") or {}).get("phase") == expected else None

    return plain(await until(look, what=f"{resource} {expected}"))


def plain(obj: Obj) -> Obj:
    """An object without identity and times."""
    meta = {key: value for key, value in obj["metadata"].items() if key not in UNSAID}
    body = {key: value for key, value in obj.items() if key not in {"metadata", "apiVersion"}}
    ref = (body.get("spec") or {}).get("claimRef")
    if ref:
        body["spec"]["claimRef"] = {key: ref[key] for key in sorted(ref) if key not in UNSAID}
    (body.get("status") or {}).pop("lastPhaseTransitionTime", None)
    comparable: Obj = timeless({"metadata": meta, **body})
    return comparable


async def event_message(there: Side, name: str, reason: str) -> str:
    """Wait for an event about a claim; its message."""

    async def look() -> str | None:
        events = await there.send("GET", "events")
        for event in events["items"]:
            if event["involvedObject"]["name"] == name and event["reason"] == reason:
                return str(event["message"])
        return None

    text: str = await until(look, what=f"{reason} about {name}")
    return text


async def test_volumes_made_by_hand(realkube: real.ControlPlane, ours: Path) -> None:
    """Volumes are matched by size, named by claims, refused and released."""

    async def scene(there: Side) -> Any:
        kind = there.namespace
        await there.make(VOLUMES, f"{kind}-small", disk("500Mi", storageClassName=kind))
        await there.make(VOLUMES, f"{kind}-fit", disk(storageClassName=kind))
        await there.make(VOLUMES, f"{kind}-large", disk("9Gi", storageClassName=kind))
        seen: list[Any] = [
            await phase(there, f"{VOLUMES}/{kind}-{name}", "Available")
            for name in ("small", "fit", "large")
        ]
        await there.make(CLAIMS, "one", spec(storageClassName=kind))
        seen += [
            await phase(there, f"{CLAIMS}/one", "Bound"),
            await phase(there, f"{VOLUMES}/{kind}-fit", "Bound"),
        ]
        small = spec(storageClassName=kind, volumeName=f"{kind}-small")
        await there.make(CLAIMS, "named", small)
        seen += [
            await phase(there, f"{CLAIMS}/named", "Pending"),
            await event_message(there, "named", "VolumeMismatch"),
        ]
        taken = spec(storageClassName=kind, volumeName=f"{kind}-fit")
        await there.make(CLAIMS, "late", taken)
        seen += [
            await phase(there, f"{CLAIMS}/late", "Pending"),
            await event_message(there, "late", "FailedBinding"),
        ]
        await there.make(CLAIMS, "classless", spec(storageClassName=""))
        seen.append(await event_message(there, "classless", "FailedBinding"))
        await there.make(CLAIMS, "lost-class", spec(storageClassName=f"{kind}-none"))
        seen.append(await event_message(there, "lost-class", "ProvisioningFailed"))
        await there.send("DELETE", f"{CLAIMS}/one")
        seen.append(await phase(there, f"{VOLUMES}/{kind}-fit", "Released"))
        return seen

    await both(realkube.kubeconfig, ours, "volumes-by-hand", scene)


async def test_reserved_volumes_and_claims_that_wait(
    realkube: real.ControlPlane, ours: Path
) -> None:
    """A volume with a claimRef is reserved; a class may wait for a pod or another provisioner."""

    async def scene(there: Side) -> Any:
        kind = there.namespace
        ref = {"namespace": kind, "name": "mine"}
        await there.make(VOLUMES, f"{kind}-r", disk("9Gi", storageClassName=kind, claimRef=ref))
        await there.make(CLAIMS, "other", spec(storageClassName=kind))
        await there.make(CLAIMS, "mine", spec(storageClassName=kind))
        seen: list[Any] = [
            await phase(there, f"{CLAIMS}/mine", "Bound"),
            await phase(there, f"{VOLUMES}/{kind}-r", "Bound"),
            await phase(there, f"{CLAIMS}/other", "Pending"),
        ]
        for name, mode in (("wait", "WaitForFirstConsumer"), ("now", "Immediate")):
            body = {
                "metadata": {"name": f"{kind}-{name}"},
                "provisioner": "example.com/nobody",
                "volumeBindingMode": mode,
            }
            await there.send("POST", CLASSES, body)
            await there.make(CLAIMS, name, spec(storageClassName=f"{kind}-{name}"))
        seen += [
            await event_message(there, "wait", "WaitForFirstConsumer"),
            await event_message(there, "now", "ExternalProvisioning"),
            await phase(there, f"{CLAIMS}/now", "Pending"),
            await phase(there, f"{CLAIMS}/wait", "Pending"),
        ]
        return seen

    await both(realkube.kubeconfig, ours, "volumes-reserved", scene)
