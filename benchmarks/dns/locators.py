"""What PodLocators cost the name server with 5,000 nodes and 50,000 pods.

Memory is growth of the resident set of a fresh process; times are processor time. The store holds
every PodLocator and the index over it, as the name server does. "Labels apart" is the same without
sharing equal maps of labels.
"""

from __future__ import annotations

import gc
import resource
import subprocess
import sys
import time
from collections.abc import Iterator

import msgspec

from benchmarks.table import Row, Table
from zonewise.api.codec import decoder
from zonewise.api.objects.locator import PodLocator
from zonewise.runtime.cache.store import Store
from zonewise.topology.locator_index import LabelInterner, Locator, LocatorIndex
from zonewise.topology.pod_locators import label_interning

NODES, PODS = 5_000, 50_000
LABELS = 20


def body(number: int, version: int, *, rack: str = "r") -> bytes:
    """A PodLocator as the API server sends it."""
    node = number % NODES
    labels = {f"example.com/label-{at}": f"value-{node % 7}-{at}" for at in range(LABELS - 3)}
    labels |= {
        "kubernetes.io/hostname": f"node-{node}",
        "topology.kubernetes.io/zone": f"zone-{node % 3}",
        "example.com/rack": f"{rack}-{node % 100}",
    }
    ips = (f"10.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}", f"fd00::{number:x}")
    return msgspec.json.encode(
        {
            "metadata": {
                "name": f"pod-{number}",
                "namespace": f"ns-{number % 50}",
                "uid": f"uid-{number}",
                "resourceVersion": str(version),
                "creationTimestamp": "2026-01-01T00:00:00Z",
            },
            "ips": [{"ip": ip} for ip in ips],
            "nodeName": f"node-{node}",
            "nodeLabels": labels,
        }
    )


def measure(*, shared: bool) -> dict[str, float]:
    """Fill a store and an index, and use them."""
    maps = LabelInterner()
    transform = label_interning(maps) if shared else None
    store: Store[PodLocator] = Store(transform=transform)
    locators = LocatorIndex(interner=maps)

    def follow(_: PodLocator | None, new: PodLocator | None) -> None:
        if new is not None:
            locators.put(Locator.from_object(new))

    if shared:
        store.on_change(follow)
    decode = decoder(PodLocator).decode
    gc.collect()
    before = _resident()
    began = time.process_time()
    for number in range(PODS):
        store.apply(decode(body(number, number + 1)))
    filled = time.process_time() - began
    gc.collect()
    costs = {"fill": filled / PODS * 1e6, "memory": (_resident() - before) / 1e6}
    if not shared:
        return costs
    began = time.process_time()
    for number in range(PODS):
        locators.locate(f"10.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}")
    costs["look-up"] = (time.process_time() - began) / PODS * 1e6
    began = time.process_time()
    for number in range(0, PODS, NODES):
        store.apply(decode(body(number, PODS + number + 1, rack="s")))
    costs["relabel"] = (time.process_time() - began) * 1e6
    costs["maps"] = len(maps)
    return costs


def locators() -> Iterator[Table]:
    """Memory and time, each in a process of its own."""
    ours, apart = (_alone(shared) for shared in (True, False))
    yield Table(
        title=f"PodLocators: memory of {PODS:,} pods on {NODES:,} nodes, {LABELS} labels each",
        unit="MB",
        higher_is_better=False,
        rows=(
            Row(name="store and index", value=ours["memory"], ours=True),
            Row(name="store alone, labels apart", value=apart["memory"]),
        ),
        note=f"{ours['maps']:.0f} maps of labels are held",
    )
    yield Table(
        title="PodLocators: processor time",
        unit="µs",
        higher_is_better=False,
        rows=(
            Row(name="decode, store and index one", value=ours["fill"], ours=True),
            Row(name="look up an address", value=ours["look-up"], ours=True),
            Row(name="relabel a node with 10 pods", value=ours["relabel"], ours=True),
        ),
    )


def _alone(shared: bool) -> dict[str, float]:
    code = (
        "import json; from benchmarks.dns.locators import measure; "
        f"print(json.dumps(measure(shared={shared})))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    costs: dict[str, float] = msgspec.json.decode(out.stdout)
    return costs


def _resident() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
