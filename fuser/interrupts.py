"""Ctrl-C, SIGTERM and closed pipes: a command ends soon, with one line and its exit code, and none of its children outlives it.

In the process of a command (:func:`as_process`) a signal first ends every child, so that nothing waits for them, and then raises
KeyboardInterrupt where the program is, so that what is finished can be kept. A thread watches: where a library does not come
back to Python in :data:`PATIENCE` seconds, or swallows the exception, it ends the process. Children of :mod:`fuser.pools`
never see Ctrl-C, not even while they start: their parent ends them.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
from collections.abc import Callable
from collections.abc import Iterator
from contextlib import contextmanager
from contextlib import suppress
from typing import Any

PATIENCE = 5.0
"""Seconds in which a command may keep what is finished."""
INTERRUPTED, TERMINATED, CLOSED = 130, 143, 141
UNSAID = "ignore::UserWarning:multiprocessing.resource_tracker"
"""Python's tracker is not to say that it cleaned up behind children that were killed."""


class Terminated(KeyboardInterrupt):
    """SIGTERM."""


# -- the process of a command -------------------------------------------------------------------------------------------------


def as_process(command: Callable[[], int]) -> int:
    """Carry out a command that is all that this process does; returns its exit code, after which only the interpreter ends."""
    _open_streams()
    sys.warnoptions.append(UNSAID)
    watch = _Watch()
    watch.start()
    try:
        code = _ended(command)
    except KeyboardInterrupt as error:  # in the handler's own way out
        code = said(error)
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError as error:
            closed = isinstance(error, BrokenPipeError)
            _silence(stream)
            if not closed and not code and stream is sys.stdout:
                with suppress(OSError):
                    print(f"error: the output cannot be written: {error.strerror or error}", file=sys.stderr)
            code = CLOSED if closed else code or 6
    watch.finish()
    if watch.signal:
        _end(code)
    return code


def _end(code: int) -> None:
    """The end of the process after a signal. Python's own would be death by SIGINT wherever an interruption passed through code
    that was made of text (that of a data class, say)."""
    end_children()
    with suppress(BaseException):
        atexit._run_exitfuncs()
    os._exit(code)


def _ended(command: Callable[[], int]) -> int:
    try:
        code = command()
    except KeyboardInterrupt as error:
        return said(error)
    except BrokenPipeError:
        gone = [s for s in (sys.stdout, sys.stderr) if _broken(s)]
        if not gone:
            raise
        end_children()
        for stream in gone:
            _silence(stream)
        return CLOSED
    return code


def said(error: KeyboardInterrupt) -> int:
    """One line about an interruption; returns the exit code."""
    terminated = isinstance(error, Terminated)
    with suppress(OSError):
        text = f": {error}" if str(error) else ""
        print(f"{'terminated' if terminated else 'interrupted'}{text}", file=sys.stderr, flush=True)
    return TERMINATED if terminated else INTERRUPTED


class _Watch:
    """Handlers of SIGINT and SIGTERM, and the thread that ends the process where they do not."""

    def __init__(self) -> None:
        self.signal, self.said = 0, False
        self.done = threading.Event()
        self.pid = os.getpid()

    def start(self) -> None:
        self.reader, self.writer = os.pipe()
        os.set_blocking(self.writer, False)
        signal.set_wakeup_fd(self.writer, warn_on_full_buffer=False)
        threading.Thread(target=self._watch, name="interrupts", daemon=True).start()
        self.before, self.before_thread = sys.unraisablehook, threading.excepthook
        sys.unraisablehook, threading.excepthook = self._unraisable, self._in_thread
        os.register_at_fork(after_in_child=self._forked)
        signal.signal(signal.SIGTERM, self._handle)
        signal.signal(signal.SIGINT, self._handle)

    def finish(self) -> None:
        """All is said. After a signal the thread watches on until the interpreter has ended."""
        self.said = True
        sys.unraisablehook = self.before
        if not self.signal:
            threading.excepthook = self.before_thread
            self.done.set()
            with suppress(ValueError, OSError):
                signal.set_wakeup_fd(-1)

    def _handle(self, number: int, _: object) -> None:
        if self.signal:  # a second time: what is finished is being kept
            return
        self.signal = number
        end_children()
        raise Terminated if number == signal.SIGTERM else KeyboardInterrupt

    def _forked(self) -> None:
        if self.done.is_set():
            return
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def _watch(self) -> None:
        """Ends the process :data:`PATIENCE` seconds after a signal."""
        while True:
            numbers = os.read(self.reader, 64)
            if stop := next((n for n in numbers if n in (signal.SIGINT, signal.SIGTERM)), 0):
                break
        if self.done.wait(PATIENCE):
            return
        end_children(tracker=True)
        if not self.said:
            os.write(2, b"terminated\n" if stop == signal.SIGTERM else b"interrupted\n")
        os._exit(TERMINATED if stop == signal.SIGTERM else INTERRUPTED)

    def _in_thread(self, args: Any) -> None:
        """What fails in a thread whose children a signal has ended is no fault."""
        if not self.signal:
            self.before_thread(args)

    def _unraisable(self, unraisable: Any) -> None:
        """An interruption within a finalizer, from where no exception comes out, is raised again behind it."""
        if isinstance(unraisable.exc_value, KeyboardInterrupt):
            number, self.signal = self.signal or signal.SIGINT, 0
            os.kill(self.pid, number)
        else:
            self.before(unraisable)


def _open_streams() -> None:
    """Streams that can be written to, whatever is in the text and whatever the caller closed."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def _broken(stream: Any) -> bool:
    import select

    try:
        poll = select.poll()
        poll.register(stream.fileno(), select.POLLOUT)
        return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))
    except (OSError, ValueError, AttributeError):
        return False


def _silence(stream: Any) -> None:
    """What is still to be written goes nowhere."""
    with suppress(OSError, ValueError, AttributeError):
        devnull = os.open(os.devnull, os.O_WRONLY)
        os.dup2(devnull, stream.fileno())
        os.close(devnull)


# -- children -----------------------------------------------------------------------------------------------------------------


def descendants(pid: int) -> list[int]:
    """Processes below one, from Linux' ``/proc``; none elsewhere."""
    children: dict[int, list[int]] = {}
    with suppress(OSError):
        for name in filter(str.isdigit, os.listdir("/proc")):
            with suppress(OSError, ValueError, IndexError), open(f"/proc/{name}/stat", "rb") as file:
                children.setdefault(int(file.read().rsplit(b")", 1)[1].split()[1]), []).append(int(name))
    found = list(children.get(pid, ()))
    for child in found:
        found += children.get(child, ())
    return found


def end_children(tracker: bool = False) -> None:
    """Kill every process below this one; Python's own tracker of shared memory, which cleans up behind them, only with
    ``tracker``."""
    module = sys.modules.get("multiprocessing.resource_tracker")
    kept = getattr(getattr(module, "_resource_tracker", None), "_pid", None)
    for pid in descendants(os.getpid()):
        if pid != kept or tracker:
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)


@contextmanager
def without_interrupts() -> Iterator[None]:
    """Processes that start in this block have SIGINT blocked for good; here one that comes meanwhile is served afterwards."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
