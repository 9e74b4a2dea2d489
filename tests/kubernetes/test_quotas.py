"""Quotas and LimitRanges: a real control plane and ours refuse, default and count the same."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.contract.embedded import embedded
from tests.kubernetes.sides import Obj, Side, both, until

from tools import realkube as real
from zonewise.api.errors import ApiError

pytestmark = [pytest.mark.real, pytest.mark.asyncio]

NOWHERE = {"nodeSelector": {"example.com/nowhere": "yes"}}


@pytest.fixture(scope="module")
def ours() -> Iterator[Path]:
    """Our cluster without nodes; its kubeconfig."""
    with embedded(content="--empty") as kubeconfig:
        yield kubeconfig


async def try_create(there: Side, resource: str, name: str, spec: Obj) -> Any:
    """Create an object; returns its annotations and resources, or the refusal."""
    try:
        created = await there.make(resource, name, spec)
    except ApiError as error:
        return error.code, error.status.message
    containers = (created.get("spec") or {}).get("containers") or ()
    return created["metadata"].get("annotations"), [
        container.get("resources") for container in containers
    ]


def pod(requests: Obj | None = None, limits: Obj | None = None, **fields: Any) -> Obj:
    """A pod that fits no node."""
    resources = {"requests": requests or {}, "limits": limits or {}}
    return {
        "containers": [{"name": "c", "image": "c", "resources": resources}],
        **NOWHERE,
        **fields,
    }


async def used(there: Side, name: str, **expected: str) -> Obj:
    """Wait until a quota reports this usage; returns its whole status."""

    async def look() -> Obj | None:
        quota = await there.send("GET", f"resourcequotas/{name}")
        status: Obj = quota.get("status") or {}
        usage = status.get("used") or {}
        fits = all(usage.get(key.replace("_", ".")) == amount for key, amount in expected.items())
        return status if fits else None

    status: Obj = await until(look, what=f"{name} {expected}")
    return status


async def test_quotas(realkube: real.ControlPlane, ours: Path) -> None:
    """Both servers count and refuse alike under quotas on compute resources, counts and storage,
    and with scopes.
    """

    async def scene(there: Side) -> Any:
        hard = {
            "pods": "3",
            "requests.cpu": "1",
            "limits.memory": "1Gi",
            "services.nodeports": "1",
            "count/secrets": "1",
            "requests.storage": "10Gi",
            "persistentvolumeclaims": "2",
        }
        await there.make("resourcequotas", "all", {"hard": hard})
        best = {"hard": {"pods": "1"}, "scopes": ["BestEffort"]}
        await there.make("resourcequotas", "best", best)
        seen: list[Any] = [await used(there, "all", pods="0"), await used(there, "best", pods="0")]
        sized = pod({"cpu": "400m"}, {"memory": "256Mi", "cpu": "1"})
        seen += [
            await try_create(there, "pods", "silent", pod({"memory": "1Mi"})),
            await try_create(there, "pods", "a", sized),
            await used(there, "all", pods="1"),
            await try_create(
                there, "pods", "b", pod({"cpu": "700m"}, {"memory": "2Gi", "cpu": "1"})
            ),
        ]
        ports = [{"name": name, "port": port} for name, port in (("a", 80), ("b", 81))]
        claim = {"accessModes": ["ReadWriteOnce"], "storageClassName": "none"}
        seen += [
            await try_create(there, "services", "s", {"type": "NodePort", "ports": ports}),
            await try_create(
                there,
                "persistentvolumeclaims",
                "large",
                {**claim, "resources": {"requests": {"storage": "11Gi"}}},
            ),
            await try_create(
                there,
                "persistentvolumeclaims",
                "fits",
                {**claim, "resources": {"requests": {"storage": "9Gi"}}},
            ),
            await used(there, "all", persistentvolumeclaims="1"),
        ]
        await there.send("DELETE", "pods/a")
        seen.append(await used(there, "all", pods="0"))
        return seen

    await both(realkube.kubeconfig, ours, "quotas", scene)


async def test_limit_ranges(realkube: real.ControlPlane, ours: Path) -> None:
    """Both servers apply limit ranges alike: defaults with their annotation; minimum, maximum and
    ratio; for pods and claims.
    """

    async def scene(there: Side) -> Any:
        limits: list[Obj] = [
            {
                "type": "Container",
                "min": {"cpu": "50m"},
                "max": {"cpu": "500m"},
                "default": {"cpu": "300m", "memory": "64Mi"},
                "defaultRequest": {"cpu": "100m", "memory": "32Mi"},
                "maxLimitRequestRatio": {"cpu": "4"},
            },
            {"type": "Pod", "max": {"memory": "128Mi"}},
            {"type": "PersistentVolumeClaim", "max": {"storage": "2Gi"}, "min": {"storage": "1Gi"}},
        ]
        await there.make("limitranges", "l", {"limits": limits})

        async def known() -> bool | None:
            # The real server learns of LimitRanges by a watch.
            answer = await try_create(there, "pods", "probe", pod({"cpu": "1m"}))
            return True if answer[0] == 403 else None

        await until(known, what="the limits")
        seen = [
            await try_create(there, "pods", "plain", pod()),
            await try_create(there, "pods", "part", pod({"cpu": "200m"})),
        ]
        for number, (least, most) in enumerate((("10m", "40m"), ("300m", "600m"), ("60m", "480m"))):
            spec = pod({"cpu": least}, {"cpu": most})
            seen.append(await try_create(there, "pods", f"bad{number}", spec))
        seen.append(await try_create(there, "pods", "fat", pod(None, {"memory": "1Gi"})))
        for number, size in enumerate(("512Mi", "1Gi", "3Gi")):
            claim = {
                "accessModes": ["ReadWriteOnce"],
                "storageClassName": "none",
                "resources": {"requests": {"storage": size}},
            }
            seen.append(await try_create(there, "persistentvolumeclaims", f"c{number}", claim))
        return seen

    await both(realkube.kubeconfig, ours, "limit-ranges", scene)
