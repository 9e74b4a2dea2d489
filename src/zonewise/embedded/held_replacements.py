"""New pods of rollouts by domain are held, as a mutating plugin of the API server.

On a real cluster a webhook does this (``webhook.replacements``); here it is asked without a
request, in every namespace, because all budgets of this cluster are enforced.
"""

from __future__ import annotations

from zonewise.api.codec import convert
from zonewise.api.objects.pod import Pod
from zonewise.disruption.rollouts.replacements import GATE
from zonewise.embedded.apiserver.admission.admission import Attributes
from zonewise.webhook.replacements import ReplacementHold


class HeldReplacements:
    """The plugin."""

    def __init__(self, hold: ReplacementHold) -> None:
        self._hold = hold

    def __call__(self, attributes: Attributes) -> None:
        """Add the gate to a new pod that has to wait."""
        obj = attributes.obj
        if (
            attributes.operation != "CREATE"
            or attributes.subresource
            or attributes.served.storage != "/pods"
            or obj is None
            or not self._hold.may_hold(attributes.namespace)
        ):
            return
        if self._hold.holds(convert(Pod, obj), attributes.namespace):
            obj["spec"].setdefault("schedulingGates", []).append({"name": GATE})
