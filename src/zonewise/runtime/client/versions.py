"""Which of two resourceVersions is the later one."""

from __future__ import annotations


def number(version: str) -> int:
    """A resourceVersion as the number it is, or -1 if a server uses something else."""
    return int(version) if version.isdecimal() else -1


def newer(version: str, than: str) -> bool:
    """Whether a resourceVersion is later than another of the same resource.

    One that is no number gets the benefit of the doubt as long as the two differ. No version is
    newer than nothing.
    """
    ours, theirs = number(version), number(than)
    if ours >= 0 and theirs >= 0:
        return ours > theirs
    return version not in ("", than)


def older(version: str, than: str) -> bool:
    """Whether a resourceVersion is certainly earlier than another of the same resource."""
    return 0 <= number(version) < number(than)
