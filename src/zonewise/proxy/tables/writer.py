"""What is desired, written so that no Service delays or prevents the rules of others.

*A refusal* is one Service's. What the kernel refuses is written again in halves, down to the
Services that it refuses alone; these keep the rules they had, and everything else goes in. Each is
tried again when it changes, and without a change, but after pauses that grow.

*A large Service* that gains many endpoints gains them in pieces: slots that nothing leads to yet go
in first, ``PIECE`` at a time, and the rules of others between them.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from zonewise.api.errors import ZonewiseError
from zonewise.api.meta import Key
from zonewise.proxy.netlink.socket import NetlinkError
from zonewise.proxy.tables.desired import Changes, Desired
from zonewise.proxy.tables.kernel import Kernel, KernelRefused, Networks
from zonewise.proxy.tables.layout import NOTHING, SHARED, SLOTTED, Layout

PIECE = 8192
"""Slots that are added in one transaction: a few hundredths of a second."""

_NOT_ITS_CONTENT = frozenset(
    (errno.EPERM, errno.EACCES, errno.EAGAIN, errno.EINTR, errno.ENOBUFS, errno.EPROTO)
)
"""Refusals that say nothing about what was to be written."""
_DIFFERS = frozenset((errno.ENOENT, errno.EEXIST))
"""Refusals because the kernel holds something else than what was written."""

_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 300.0


@dataclass(slots=True)
class Retry:
    """When to try again what failed: after pauses that double."""

    pause: float = 0.0
    due: float = 0.0

    def failed(self, now: float) -> None:
        """It failed once more."""
        self.pause = min(max(2 * self.pause, _FIRST_PAUSE), _LONGEST_PAUSE)
        self.due = now + self.pause


@dataclass(slots=True)
class WriteResult:
    """What came of a write."""

    removed: int = 0
    put: int = 0
    refused: dict[Key, ZonewiseError] = field(default_factory=dict)
    """The Services whose rules the kernel refused."""
    unfinished: list[Key] = field(default_factory=list)
    """Those of which there is more to write."""

    def count(self, changes: Changes) -> None:
        """These were written."""
        self.removed += len(changes.remove)
        self.put += len(changes.put)


class TableWriter:
    """Writes layouts of Services; keeps what is desired equal to what was accepted."""

    def __init__(self, kernel: Kernel, *, not_removed: Callable[[Exception], None]) -> None:
        self.desired = Desired()
        self._kernel = kernel
        self._not_removed = not_removed

    async def write(self, layouts: Mapping[Key, Layout], networks: Networks) -> WriteResult:
        """Write what changed of these Services."""
        written = WriteResult()
        if len(layouts) == 1:
            ((key, layout),) = layouts.items()
            step = next_step(self.desired.layout(key), layout)
            if step is not layout:
                written.unfinished.append(key)
            layouts = {key: step}
        await self._write(list(layouts), layouts, networks, written, compared=False)
        return written

    async def compare(
        self,
        layouts: Mapping[Key, Layout],
        actual: Mapping[bytes, bytes],
        networks: Networks,
        *,
        keep_others: bool = False,
    ) -> WriteResult:
        """Write what differs from the ``actual`` elements, of these Services and all others.

        ``keep_others`` leaves elements that no Service wants.
        """
        written = WriteResult()
        if keep_others:
            known = self.desired.elements.keys() | {
                element for layout in layouts.values() for element in layout.elements
            }
            actual = {element: data for element, data in actual.items() if element in known}
        before = self._previous_layouts(layouts)
        self.desired.change(layouts)
        try:
            await self._replan(actual, networks, written)
        except (NetlinkError, KernelRefused) as error:
            self.desired.change(before)
            if not _may_be_content(error):
                raise
            layouts = await self._accepted(layouts, actual, networks, written)
            await self._write_in_halves(list(layouts), layouts, networks, written)
        return written

    def sweep(self) -> None:
        """Take out every chain that nothing leads to."""
        try:
            self._kernel.sweep(self.desired.elements, self.desired.chains())
        except (ZonewiseError, OSError) as error:
            self._not_removed(error)

    async def _replan(
        self, actual: Mapping[bytes, bytes], networks: Networks, written: WriteResult
    ) -> None:
        changes = self.desired.replan(actual)
        await self._kernel.write(changes, networks)
        written.count(changes)

    async def _accepted(
        self,
        layouts: Mapping[Key, Layout],
        actual: Mapping[bytes, bytes],
        networks: Networks,
        written: WriteResult,
    ) -> Mapping[Key, Layout]:
        """Write what was accepted before; if that is refused, nothing, and all is to be tried."""
        try:
            await self._replan(actual, networks, written)
        except (NetlinkError, KernelRefused):
            everything = self._previous_layouts(self.desired.keys()) | dict(layouts)
            self.desired.change(dict.fromkeys(self.desired.keys(), NOTHING))
            await self._replan(actual, networks, written)
            return everything
        return layouts

    async def _write(
        self,
        keys: Sequence[Key],
        layouts: Mapping[Key, Layout],
        networks: Networks,
        written: WriteResult,
        *,
        compared: bool,
    ) -> None:
        """Write these in one transaction, or in smaller ones; ``compared`` with the kernel."""
        before = self._previous_layouts(keys)
        changes = self.desired.change({key: layouts[key] for key in keys})
        try:
            await self._kernel.write(changes, networks)
        except (NetlinkError, KernelRefused) as error:
            self.desired.change(before)
            if not _may_be_content(error):
                raise
            if len(keys) > 1:
                await self._write_in_halves(keys, layouts, networks, written, compared=compared)
            elif not compared and isinstance(error, NetlinkError) and error.code in _DIFFERS:
                raise
            else:
                written.refused[keys[0]] = error
            return
        written.count(changes)
        self._remove(keys, changes)

    async def _write_in_halves(
        self,
        keys: Sequence[Key],
        layouts: Mapping[Key, Layout],
        networks: Networks,
        written: WriteResult,
        *,
        compared: bool = True,
    ) -> None:
        released = self._released(keys, layouts)
        if released:
            await self._write(list(released), released, networks, written, compared=compared)
        middle = (len(keys) + 1) // 2
        for half in (keys[:middle], keys[middle:]):
            if half:
                await self._write(half, layouts, networks, written, compared=compared)

    def _released(self, keys: Iterable[Key], layouts: Mapping[Key, Layout]) -> dict[Key, Layout]:
        """What Services have now but for what passes to another, which may be written before."""
        before = self._previous_layouts(keys)
        owners = {
            element: key
            for key, layout in before.items()
            for element in layout.elements
            if element[0] not in SHARED
        }
        passed: dict[Key, set[bytes]] = {}
        for key in keys:
            for element in layouts[key].elements:
                owner = owners.get(element, key)
                if owner != key:
                    passed.setdefault(owner, set()).add(element)
        return {
            key: Layout(
                {
                    element: data
                    for element, data in before[key].elements.items()
                    if element not in gone
                },
                before[key].chains,
            )
            for key, gone in passed.items()
        }

    def _previous_layouts(self, keys: Iterable[Key]) -> dict[Key, Layout]:
        return {key: self.desired.layout(key) for key in keys}

    def _remove(self, keys: Iterable[Key], changes: Changes) -> None:
        """Take out chains that nothing leads to any more; ``sweep`` does if that fails."""
        if not changes.unused:
            return
        used = [chain for key in keys for chain in self.desired.layout(key).chains]
        try:
            self._kernel.remove(changes.unused, used)
        except (ZonewiseError, OSError) as error:
            self._not_removed(error)


def next_step(before: Layout, after: Layout) -> Layout:
    """What to write first on the way from one layout to another; the latter if it is short.

    New slots are added while nothing leads to them yet.
    """
    new = [
        element
        for element in after.elements
        if element[0] in SLOTTED and element not in before.elements
    ]
    if len(new) <= PIECE:
        return after
    piece = {element: after.elements[element] for element in new[:PIECE]}
    return Layout(before.elements | piece, before.chains)


def _may_be_content(error: ZonewiseError) -> bool:
    return not (isinstance(error, NetlinkError) and error.code in _NOT_ITS_CONTENT)
