"""The tag of an image reference, as far as the pull policy depends on it."""

from __future__ import annotations

import re
from functools import lru_cache

_LABEL = r"[a-zA-Z0-9](?:[a-zA-Z0-9-]*[a-zA-Z0-9])?"
_DOMAIN = rf"(?:{_LABEL}(?:\.{_LABEL})*|\[[a-fA-F0-9:]+\])(?::[0-9]+)?"
_PART = r"[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*"
_REFERENCE = re.compile(
    rf"(?P<name>(?:{_DOMAIN}/)?{_PART}(?:/{_PART})*)(?::(?P<tag>\w[\w.-]{{0,127}}))?"
    r"(?P<digest>@[A-Za-z][A-Za-z0-9]*(?:[-_+.][A-Za-z][A-Za-z0-9]*)*:[0-9a-fA-F]{32,})?",
    re.ASCII,
)
_IDENTIFIER = re.compile(r"[a-f0-9]{64}")
_NAME_LIMIT = 255


@lru_cache(maxsize=4096)
def pull_policy(image: str) -> str:
    """The pull policy of a container that does not state one.

    `Always` for the tag `latest`, which is also meant where neither a tag nor a digest is given. A
    text that is no reference has no tag.
    """
    match = _REFERENCE.fullmatch(image)
    if match is None or _IDENTIFIER.fullmatch(image) or len(match["name"]) > _NAME_LIMIT:
        return "IfNotPresent"
    tag = match["tag"] or ("" if match["digest"] else "latest")
    return "Always" if tag == "latest" else "IfNotPresent"
