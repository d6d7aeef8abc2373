"""The process's one communication thread: calls run there one after the other, while the main thread computes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue


class Call:
    """Work that was handed to the thread."""

    def __init__(self, work: Callable[[], object]) -> None:
        self._work: Callable[[], object] | None = work
        self._done = threading.Event()
        self._error: BaseException | None = None

    def run(self) -> None:
        """Do the work, on the thread; an exception is kept for who waits.

        Its tensors are let go of first: the last call is remembered, and would keep their memory.
        """
        work, self._work = self._work, None
        assert work is not None  # a call is made once
        try:
            work()
        except BaseException as error:
            self._error = error
        finally:
            del work
            self._done.set()

    def wait(self) -> None:
        """Block until the work is done, and raise what went wrong in it."""
        self.wait_silently()
        if self._error is not None:
            raise self._error

    def wait_silently(self) -> None:
        """Block until the work is done, well or not."""
        self._done.wait()

    @property
    def done(self) -> bool:
        """Whether the work is over, well or not."""
        return self._done.is_set()


_NAME = "communication"
_queue: SimpleQueue[Call] | None = None
_last: Call | None = None


def submit(work: Callable[[], object]) -> Call:
    """Let the thread do `work` when it has done all that was submitted before; the first call starts the thread."""
    global _queue, _last
    if _queue is None:
        _queue = SimpleQueue()
        threading.Thread(target=_attend, args=(_queue,), name=_NAME, daemon=True).start()
    _last = Call(work)
    _queue.put(_last)
    return _last


def is_here() -> bool:
    """Whether this is the communication thread."""
    return threading.current_thread().name == _NAME


def finish_all() -> None:
    """Return when the thread has nothing left to do. What went wrong there is for `Call.wait` to raise."""
    if _last is not None:
        _last.wait_silently()


def start_afresh() -> None:
    """Leave a thread that is still stuck in an aborted call to itself; the next call starts another."""
    global _queue, _last
    if _last is not None and not _last.done:
        _queue = None
    _last = None


def _attend(queue: SimpleQueue[Call]) -> None:
    while True:
        queue.get().run()
