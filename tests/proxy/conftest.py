"""A network namespace for a test, entered by its thread."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from tests.netns.spaces import inside, space
from tests.system_guard import starts_programs


@pytest.fixture
@starts_programs
def netns() -> Iterator[str]:
    """The name of an empty namespace that this thread is in until the test ends."""
    with space(f"zwt{os.getpid()}") as name, inside(name):
        yield name
