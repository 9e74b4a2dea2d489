"""How hypothesis runs here: timing is never asserted, so an example has no deadline."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile(
    "zonewise", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.load_profile("zonewise")
