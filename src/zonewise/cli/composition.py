"""What Zonewise adds to an embedded cluster: its own controllers, as further parts of the crew."""

from __future__ import annotations

from zonewise.api.gates import FeatureGates
from zonewise.controllers import HintsController, HintsSettings
from zonewise.embedded.cluster import Parts
from zonewise.embedded.crew import Means

BATCH = 0.1
"""Many pods get ready at once on one machine; so long their slices wait for more of them."""


def controllers(gates: FeatureGates) -> Parts:
    """Zonewise's controllers by name."""

    def hints(means: Means) -> HintsController:
        return HintsController(
            client=means.client,
            cache=means.cache,
            recorder=means.recorder,
            clock=means.clock,
            rng=means.rng,
            settings=HintsSettings(gates=gates, batch=BATCH),
        )

    return {"endpointslice-controller": hints}
