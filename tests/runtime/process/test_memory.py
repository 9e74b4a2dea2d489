"""What the garbage collector is told."""

from __future__ import annotations

import gc

from zonewise.runtime.process.memory import paused, settle


def test_the_collector_is_off_inside_and_on_after() -> None:
    """No collection runs while a list is decoded, and it is back on even after an error."""
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


def test_settling_takes_the_living_out_of_sight() -> None:
    """After settling, full collections no longer look at what was alive."""
    before = gc.get_threshold()
    try:
        gc.set_threshold(700, 10, 10)
        settle()
        assert gc.get_freeze_count() > 0
        assert gc.get_threshold()[0] > 700
    finally:
        gc.unfreeze()
        gc.set_threshold(*before)
