"""The takeover map of a configuration, changed as text. Pure.

The rest of the text keeps its meaning and its order; a text that is not valid is not touched, and
neither is one that would not be valid afterwards.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from zonewise.api.errors import ConfigError
from zonewise.storage.configuration import StorageConfiguration, parse_configuration
from zonewise.storage.domains import DomainLabels

MAP = "topology-takeover"


def valid_configuration(text: str, labels: DomainLabels) -> StorageConfiguration:
    """A configuration that is to be changed; ConfigError says that it has to be corrected first."""
    try:
        return parse_configuration(text, labels)
    except ConfigError as error:
        raise ConfigError(f"the configuration is not valid, correct it first: {error}") from None


def with_takeover_of(
    text: str, changes: Mapping[str, tuple[str, ...] | None], labels: DomainLabels
) -> str:
    """A configuration in which domains are taken over, or (None) given back.

    Raises ConfigError with one sentence.
    """
    valid_configuration(text, labels)
    value = json.loads(text)
    if not isinstance(value, dict):
        raise ConfigError(
            "the configuration is of version 1, which has no word for takeover; make it version 2"
        )
    entries = dict(value.get(MAP, {}))
    for source, targets in changes.items():
        if targets is None:
            entries.pop(source, None)
        else:
            entries[source] = list(targets)
    if entries:
        value[MAP] = entries
    else:
        value.pop(MAP, None)
    changed = json.dumps(value, indent=2, ensure_ascii=False) + "\n"
    parse_configuration(changed, labels)
    return changed
