"""Takeover: nodes of live domains stand in for a failed one, and give it back. Pure.

``standing_in`` is which domain stands in for which and how that is labelled, ``fencing`` whether a
volume may be taken from its holder, ``evacuation`` which pods of dead nodes are deleted,
``automatic`` when a domain counts as failed or healed without an administrator declaring it,
``declaring`` what an administrator who does is warned of.
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
