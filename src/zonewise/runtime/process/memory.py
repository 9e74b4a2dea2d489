"""Settings of the cyclic garbage collector for large caches.

Decoding a list allocates a hundred thousand objects in one go, none of which is garbage. CPython's
collector counts allocations, so it would walk the growing heap again and again while the list is
read, and find nothing. ``paused`` disables it for that long. Caches then live as long as the
process; ``freeze_heap`` collects once and freezes everything alive, so that later full collections
cost nothing for it, and raises the threshold for new objects: a change of one large object makes
hundreds, and none of them is in a cycle. Reference counting is untouched by all this: objects that
leave a store are freed at once.

What is freed stays with the C library, which keeps it for later. Buffers of many connections that
ended together are never used again: ``give_back`` returns them to the system.
"""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Iterator
from contextlib import contextmanager

NEW_OBJECTS = 10_000
"""How many new objects make the collector look at them once caches have settled."""


@contextmanager
def paused() -> Iterator[None]:
    """No collection inside; nests, and leaves a collector alone that was off before."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def freeze_heap() -> None:
    """Collect now, then never look again at what is alive; call it once caches are filled."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(NEW_OBJECTS, *gc.get_threshold()[1:])


def give_back() -> None:
    """Return what the allocator keeps unused; takes milliseconds, and nothing where it cannot."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
