"""A switch in the kernel that ends this process at a deadline, whatever the process does meanwhile.

A leader may write only while its lease lasts. It checks before each write, but between the check
and the moment the bytes leave, the process can be stopped for any time: SIGSTOP, a frozen cgroup, a
suspended machine, a long pause of the interpreter. When it resumes, its next instruction may be the
one that sends. No check in the program can close that gap, because the program is what is not
running. The kernel can: it delivers pending signals before it lets a thread execute its next
instruction.

``Deadman.arm(deadline)`` sets a POSIX timer on CLOCK_BOOTTIME, the clock that keeps running while
the machine is suspended. At the deadline the kernel signals the thread that armed it, which is the
one that runs the event loop and thus the one that sends. The handler is the C library's ``_exit``
itself: no Python runs, nothing is flushed, the process exits with ``EXIT_CODE``. A handler rather
than SIGKILL, because the kernel ignores SIGKILL from within for process 1 of a container, which is
what we usually are. The kernel closes the sockets.

It is the last of three safeguards: the election gives up before the deadline, ``Election.fence``
refuses writes from then on, and this catches only what passes both. Linux only; elsewhere
``create`` says so and an election runs without it.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading

from zonewise.api.errors import ConfigError

_CLOCK_BOOTTIME = 7
_SIGEV_THREAD_ID = 4
_TIMER_ABSTIME = 1
_SIGNAL = signal.SIGRTMAX - 1 if sys.platform == "linux" else 0

EXIT_CODE = _SIGNAL
"""``_exit`` as a handler gets the signal's number as its argument."""


class _Sigevent(ctypes.Structure):
    _fields_ = (
        ("value", ctypes.c_void_p),
        ("signo", ctypes.c_int),
        ("notify", ctypes.c_int),
        ("thread", ctypes.c_int),
        ("padding", ctypes.c_char * 44),
    )


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class _Itimerspec(ctypes.Structure):
    _fields_ = (("interval", _Timespec), ("value", _Timespec))


class Deadman:
    """Ends the process when a deadline passes; one thread arms it again and again.

    Deadlines are seconds of CLOCK_BOOTTIME.
    """

    def __init__(self) -> None:
        if sys.platform != "linux":
            raise ConfigError("a deadman switch needs Linux; run the election without it")
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._libc.signal.restype = ctypes.c_void_p
        self._libc.signal.argtypes = [ctypes.c_int, ctypes.c_void_p]
        self._timer: ctypes.c_void_p | None = None

    def arm(self, deadline: float) -> None:
        """End this process at ``deadline`` unless armed again or disarmed before."""
        if self._timer is None:
            self._timer = self._create()
        # A value of zero would disarm; a deadline that has passed fires at once.
        nanoseconds = max(1, int(deadline * 1e9))
        self._set(_Timespec(nanoseconds // 10**9, nanoseconds % 10**9))

    def disarm(self) -> None:
        """Cancel the deadline; the next ``arm`` may come from another thread."""
        if self._timer is not None:
            self._check("timer_delete", self._libc.timer_delete(self._timer))
            self._timer = None

    def _create(self) -> ctypes.c_void_p:
        ending = ctypes.cast(self._libc._exit, ctypes.c_void_p)
        self._libc.signal(_SIGNAL, ending)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [_SIGNAL])
        event = _Sigevent(signo=_SIGNAL, notify=_SIGEV_THREAD_ID, thread=threading.get_native_id())
        timer = ctypes.c_void_p()
        status = self._libc.timer_create(_CLOCK_BOOTTIME, ctypes.byref(event), ctypes.byref(timer))
        self._check("timer_create", status)
        return timer

    def _set(self, value: _Timespec) -> None:
        setting = _Itimerspec(interval=_Timespec(0, 0), value=value)
        done = self._libc.timer_settime(self._timer, _TIMER_ABSTIME, ctypes.byref(setting), None)
        self._check("timer_settime", done)

    def _check(self, what: str, result: int) -> None:
        if result != 0:
            error = ctypes.get_errno()
            raise OSError(error, f"{what}: {os.strerror(error)}")
