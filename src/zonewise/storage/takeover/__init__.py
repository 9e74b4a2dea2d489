"""Takeover: nodes of living domains stand in for a failed one, and give it back. Pure.

``standing_in`` is who stands in for whom and how that is labelled, ``fencing`` whether a volume may
be taken from whoever has it, ``evacuation`` which pods of dead nodes make way, ``automatic`` when a
domain counts as failed or healed without a person saying so, ``declaring`` what a person hears who
does.
"""

from zonewise.storage.takeover.standing_in import (
    NO_TAKEOVER,
    TAKEN_POOL_DEAD,
    TakeoverMap,
    VolumeUse,
    away_from_home,
    covers,
    domain_name,
    home_of,
    label_changes,
    named_domains,
    parse_map,
    takeover_key,
    takeover_labels,
    takeover_term,
    takeover_warnings,
    with_takeover,
)

__all__ = [
    "NO_TAKEOVER",
    "TAKEN_POOL_DEAD",
    "TakeoverMap",
    "VolumeUse",
    "away_from_home",
    "covers",
    "domain_name",
    "home_of",
    "label_changes",
    "named_domains",
    "parse_map",
    "takeover_key",
    "takeover_labels",
    "takeover_term",
    "takeover_warnings",
    "with_takeover",
]
