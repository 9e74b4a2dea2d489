"""How many files, sockets among them, a process may have open.

Systems start programs with a low limit of 1024, for the sake of those that cannot have more, and
let them raise it. A server that takes a thousand connections needs more than that: at the limit it
could not open a socket of its own any more, neither to an upstream nor to the API server.
"""

from __future__ import annotations

import resource

ENOUGH = 16_384


def raise_file_limit() -> int:
    """Raise the limit as far as allowed and useful; gives what it is now."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = ENOUGH if hard == resource.RLIM_INFINITY else min(hard, ENOUGH)
    if soft == resource.RLIM_INFINITY or soft >= limit:
        return ENOUGH if soft == resource.RLIM_INFINITY else soft
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    return limit
