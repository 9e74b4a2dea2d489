"""Time that only grows: the event loop's.

The time of day may be set back by an hour; no pause is measured on it. In tests the loop's time is
virtual.
"""

from __future__ import annotations

import asyncio


def elapsed() -> float:
    """Seconds of the running event loop."""
    return asyncio.get_running_loop().time()
