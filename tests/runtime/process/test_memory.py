"""Settings of the garbage collector."""

from __future__ import annotations

import gc

from zonewise.runtime.process.memory import freeze_heap, paused


def test_the_collector_is_off_inside_and_on_after() -> None:
    """The garbage collector is off while a list is decoded, and on again even after an error."""
    assert gc.isenabled()
    try:
        with paused():
            assert not gc.isenabled()
            with paused():
                assert not gc.isenabled()
            assert not gc.isenabled()
            raise RuntimeError
    except RuntimeError:
        pass
    assert gc.isenabled()


def test_settling_freezes_living_objects() -> None:
    """After settling, full collections no longer visit the objects that were alive."""
    before = gc.get_threshold()
    try:
        gc.set_threshold(700, 10, 10)
        freeze_heap()
        assert gc.get_freeze_count() > 0
        assert gc.get_threshold()[0] > 700
    finally:
        gc.unfreeze()
        gc.set_threshold(*before)
