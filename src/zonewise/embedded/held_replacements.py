"""New pods of rollouts by domain are held, as a mutating plugin of the API server.

On a real cluster a webhook does this (``webhook.replacements``); here it is asked without a
request, in every namespace, because all budgets of this cluster are enforced.

While a cluster starts again on its folder, a controller may create pods before the rollouts are in
the cache. A webhook lets them pass then, as it cannot know more. Here the store knows whether the
namespace has a rollout, and then every pod waits that could belong to one: the rollout's controller
looks again at each, and releases those that need not wait.
"""

from __future__ import annotations

from zonewise.api.codec import convert
from zonewise.api.objects.budgets import DomainRollout
from zonewise.api.objects.pod import Pod
from zonewise.disruption.rollouts.replacements import GATE, may_need_place
from zonewise.embedded.apiserver.admission.admission import Attributes
from zonewise.embedded.apiserver.store.state import State
from zonewise.runtime.cache.cache import Cache
from zonewise.webhook.replacements import ReplacementHold


class HeldReplacements:
    """The plugin."""

    def __init__(self, hold: ReplacementHold, cache: Cache, state: State) -> None:
        self._hold = hold
        self._cache = cache
        self._state = state

    def __call__(self, attributes: Attributes) -> None:
        """Add the gate to a new pod that has to wait."""
        obj = attributes.obj
        if (
            attributes.operation != "CREATE"
            or attributes.subresource
            or attributes.served.storage != "/pods"
            or obj is None
            or not self._may_hold(attributes.namespace)
        ):
            return
        pod = convert(Pod, obj)
        if may_need_place(pod) and (
            not self._cache.complete or self._hold.holds(pod, attributes.namespace)
        ):
            obj["spec"].setdefault("schedulingGates", []).append({"name": GATE})

    def _may_hold(self, namespace: str) -> bool:
        if self._cache.complete:
            return self._hold.may_hold(namespace)
        resource = DomainRollout.resource
        return bool(self._state.list(f"{resource.group}/{resource.plural}", namespace).entries)
