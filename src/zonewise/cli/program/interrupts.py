"""Run a command that makes requests and ends, so that Ctrl-C always ends it at once.

``asyncio.run`` alone can miss a Ctrl-C: one that arrives when the loop is about to wait is noticed
only when something else wakes it up, which may be a request's timeout minutes later. With a handler
of the loop's own the signal itself wakes it up.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def run(work: Coroutine[Any, Any, T]) -> T:
    """The result of the work; raises KeyboardInterrupt if it was interrupted."""
    if threading.current_thread() is not threading.main_thread():
        return asyncio.run(work)  # Signals are the main thread's.
    return asyncio.run(_interruptible(work))


async def _interruptible(work: Coroutine[Any, Any, T]) -> T:
    loop, task = asyncio.get_running_loop(), asyncio.ensure_future(work)
    loop.add_signal_handler(signal.SIGINT, task.cancel)
    try:
        return await task
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None
    finally:
        loop.remove_signal_handler(signal.SIGINT)
