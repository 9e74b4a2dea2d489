"""The webhook for new pods: which get our scheduling gate, and what it does while it starts."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from prometheus_client import CollectorRegistry
from tests.disruption.clusters import NS, deployment, pod

from zonewise.api import Pod, convert
from zonewise.api.codec import encode
from zonewise.api.objects.budgets import DomainRollout
from zonewise.disruption.budgets_cache import BudgetsCache
from zonewise.disruption.rollouts.replacements import GATE
from zonewise.runtime.webhook.admission import AdmissionRequest, Allowed
from zonewise.webhook.replacements import ReplacementHold

pytestmark = pytest.mark.asyncio


class Rollouts:
    """A store of rollouts, complete or not yet."""

    def __init__(self, *, complete: bool = True) -> None:
        spec = {"workloadRef": {"kind": "Deployment", "name": "web"}}
        body = {"metadata": {"name": "web", "namespace": NS}, "spec": spec}
        self.complete = complete
        self.items = (convert(DomainRollout, body),)

    def store(self, cls: type[DomainRollout], **options: object) -> Rollouts:
        """This store."""
        assert cls is DomainRollout
        return self

    def by(self, index: str, namespace: str) -> tuple[DomainRollout, ...]:
        """The rollouts of a namespace."""
        return self.items if namespace == NS else ()


def hold(*, complete: bool = True, registry: CollectorRegistry | None = None) -> ReplacementHold:
    """The webhook in a cluster where a Deployment has a pod of its first revision."""
    budgets_cache = BudgetsCache()
    for owner in deployment(6, revisions=2):
        budgets_cache.put_owner(owner)
    budgets_cache.pod_changed(None, pod("old", "n-a", owner="web-1"))
    cache: Any = Rollouts(complete=complete)
    return ReplacementHold(cache, budgets_cache, registry=registry)


def review(item: Pod, namespace: str = NS, **more: Any) -> AdmissionRequest:
    """The review of a new pod, which has no namespace of its own yet."""
    metadata = msgspec.structs.replace(item.metadata, namespace="")
    body = encode(msgspec.structs.replace(item, metadata=metadata))
    return AdmissionRequest(
        namespace=namespace, operation="CREATE", object=msgspec.Raw(body), **more
    )


async def test_a_new_pod_gets_the_gate() -> None:
    """Pods of the new revision get the gate, beside those they have."""
    answer = await hold()(review(pod("p", owner="web-2")))
    path = "/spec/schedulingGates"
    assert answer == Allowed(patch=[{"op": "add", "path": path, "value": [{"name": GATE}]}])
    other = pod("p", owner="web-2", schedulingGates=[{"name": "example.com/other"}])
    answer = await hold()(review(other))
    assert answer == Allowed(patch=[{"op": "add", "path": f"{path}/-", "value": {"name": GATE}}])


@pytest.mark.parametrize(
    "request_",
    [
        review(pod("p", owner="web-1")),
        review(pod("p", owner="web-2"), namespace="elsewhere"),
        review(pod("p", owner="")),
        review(pod("p", owner="web-2"), sub_resource="status"),
        AdmissionRequest(namespace=NS, operation="DELETE"),
    ],
)
async def test_other_pods_pass_unchanged(request_: AdmissionRequest) -> None:
    """Old revisions, other namespaces, pods of nobody, subresources and deletions."""
    assert await hold()(request_) == Allowed()


async def test_it_fails_open_and_counts() -> None:
    """Before the stores are complete pods pass, and a metric says how many."""
    registry = CollectorRegistry()
    webhook = hold(complete=False, registry=registry)
    assert await webhook(review(pod("p", owner="web-2"))) == Allowed()
    assert registry.get_sample_value("zonewise_webhook_replacements_unjudged_total") == 1
