"""Ceph's commands that make a pool for each of some domains, and label it. Pure.

A pool's rule takes only what is below the CRUSH bucket of its domain: label ``zone`` with the value
``a`` is the bucket ``a`` of type ``zone``, as for read affinity. The commands are for a person to
read and run; each may be run again. Sizes and placement groups are left to the cluster's defaults.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from zonewise.api.errors import ConfigError
from zonewise.storage.domains import DomainLabels, Segments
from zonewise.storage.labelled_pools.selection import LABEL_PREFIX
from zonewise.storage.placement_reasons import describe_domain
from zonewise.storage.pools import parse_file_system_name, parse_pool_name
from zonewise.storage.strict_json import ShapeError

RBD = "rbd"
CEPHFS = "cephfs"
HOST_TYPES = frozenset({"host", "hostname"})
"""Domains inside of which replicas can only be spread over OSDs; in larger ones, over hosts."""

CommandWords = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PlannedPool:
    """A pool to be made, and how."""

    name: str
    segments: Segments
    commands: tuple[CommandWords, ...]

    @property
    def bucket(self) -> tuple[str, str]:
        """Type and name of the CRUSH bucket that must exist."""
        return [*self.segments.items()][-1]

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "poolName": self.name,
            "domainSegments": [
                {"domainLabel": name, "value": value} for name, value in self.segments.items()
            ],
            "commands": [[*command] for command in self.commands],
        }


def plan_pools(
    domains: Iterable[Segments], labels: DomainLabels, *, prefix: str, file_system: str = ""
) -> tuple[PlannedPool, ...]:
    """A pool for each domain, in their order; for RBD, or data pools of a file system.

    Raises ConfigError with one sentence.
    """
    try:
        if file_system:
            parse_file_system_name(file_system, "--fs-name")
    except ShapeError as error:
        raise ConfigError(str(error)) from None
    planned: dict[str, PlannedPool] = {}
    for domain in domains:
        segments = labels.ordered(domain)
        kind, bucket = [*segments.items()][-1]
        name = f"{prefix}-{bucket}"
        if bucket in planned:
            raise ConfigError(
                f"--domain: {describe_domain(planned[bucket].segments)} and"
                f" {describe_domain(segments)} are both the CRUSH bucket {bucket!r}, and names of"
                " buckets are unique: give each domain once, with a name of its own"
            )
        try:
            parse_pool_name(name, "--pool-prefix")
        except ShapeError as error:
            raise ConfigError(str(error)) from None
        spread = "osd" if kind in HOST_TYPES else "host"
        application = CEPHFS if file_system else RBD
        commands: list[CommandWords] = [
            ("osd", "crush", "rule", "create-replicated", name, bucket, spread),
            ("osd", "pool", "create", name, "replicated", name),
            ("fs", "add_data_pool", file_system, name)
            if file_system
            else ("osd", "pool", "application", "enable", name, application),
        ]
        commands += [
            ("osd", "pool", "application", "set", name, application, LABEL_PREFIX + label, value)
            for label, value in segments.items()
        ]
        planned[bucket] = PlannedPool(
            name, segments, tuple(("ceph", *command) for command in commands)
        )
    return tuple(planned.values())


def render_script(pools: Sequence[PlannedPool]) -> str:
    """The commands as a shell script, with what each pool needs."""
    lines: list[str] = []
    for pool in pools:
        kind, bucket = pool.bucket
        needed = f"needs the CRUSH bucket {bucket} of type {kind}, with OSDs in it"
        lines.append(f"# {describe_domain(pool.segments)}: {needed}")
        lines += [shlex.join(command) for command in pool.commands]
    return "\n".join(lines)
