"""The trainer's handle on its recorder process, which empties the ring into the sink.

    trainer ── ring (memfd), bell (eventfd), messages ──▶ anchor-recorder ──▶ sink

Records in the ring survive the trainer, however it dies: the recorder stores them and ends. A
recorder that dies is replaced by another, which goes on with the first record that is not in the
store; after three deaths a thread of the trainer empties the ring instead.
"""

from __future__ import annotations

import json
import logging
import mmap
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import ExitStack
from ctypes import addressof, c_char
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final, Literal

from anchorlib.recorder.drain_requests import PendingRequests
from anchorlib.recorder.layout import Mark
from anchorlib.recorder.process_messages import MessageSocket, fault_of
from anchorlib.recorder.recorder_plan import RecorderPlan, in_memory, open_plan
from anchorlib.recorder.ring import SLOTS, Ring, ring_bytes, shared_memory
from anchorlib.recorder.thread import RecorderThread
from anchorlib.store import RankLock

__all__ = ["RecorderProcess"]

_log = logging.getLogger("anchorlib")

_DEATHS: Final = 3
_END_SECONDS: Final = 10.0
_PACKAGES: Final = str(Path(__file__).parents[2])
_MODULE: Final = "anchorlib.recorder.main"
_MAIN: Final = """
import json, runpy, sys
sys.path[:] = json.loads(sys.argv.pop(1))
runpy.run_module(sys.argv.pop(1), run_name="__main__", alter_sys=True)
"""


class RecorderProcess:
    """Starts the recorder process, listens to it, and starts another one if it dies.

    plan: what the recorder process has to know at its start.
    lock: the lock of the rank's files, which this process holds; None where the store is a
        collector.
    on_start: called at the start of the thread that empties the ring where recorder processes have
        died too often.
    """

    given_up = "the recorder process was ended, and the run is as it left it"

    def __init__(
        self, plan: RecorderPlan, lock: RankLock | None, on_start: Callable[[], None]
    ) -> None:
        """Start the recorder process and a thread that listens to it.

        Raises OSError if the system cannot make shared memory or start a process.
        """
        self._plan, self._lock, self._on_start = plan, lock, on_start
        self._definitions: list[tuple[int, str]] = []  # each with its slot
        self._requests = PendingRequests()
        self._lent: dict[int, tuple[int, mmap.mmap]] = {}  # each with its descriptor
        self._lendings = 0
        self._guard = threading.RLock()
        self.ready = threading.Event()
        self._deaths = 0
        self._ending = self._is_over = False
        self._last = 0  # the number of the close, once it is asked for
        self._instead: RecorderThread | None = None
        with ExitStack() as undone:
            self._memory = shared_memory(ring_bytes(SLOTS, plan.payload))
            undone.callback(os.close, self._memory)
            self._bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
            undone.callback(os.close, self._bell)
            self.ring = Ring(self._memory, plan.payload, new=True)
            self._child, self._messages = self._start()
            undone.pop_all()
        self._listener = threading.Thread(
            target=self._listen, name="anchorlib-recorder", daemon=True
        )
        self._listener.start()

    def _start(self) -> tuple[subprocess.Popen[bytes], MessageSocket]:
        """Start a recorder process, which goes on at the slot that the last one had come to.

        Returns the process and the trainer's end of the connection to the process. Raises OSError
        where the process cannot be started.
        """
        options = self._plan.options
        name = f"anchor-recorder {options.run} rank {options.rank}"
        self._plan = self._successor()
        document = self._plan.document()
        with ExitStack() as ours_no_more:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            ours_no_more.callback(theirs.close)
            messages = MessageSocket(ours)
            given_up = ours_no_more.enter_context(ExitStack())
            given_up.callback(messages.close)
            plan = in_memory(document)
            ours_no_more.callback(os.close, plan)
            trainer = os.pidfd_open(os.getpid())
            ours_no_more.callback(os.close, trainer)
            passed = [self._memory, self._bell, theirs.fileno(), trainer, plan]
            if self._lock is not None:
                passed.append(self._lock.descriptor)
            child = subprocess.Popen(
                [sys.executable, "-P", "-c", _MAIN, _paths(), _MODULE, name, *map(str, passed)],
                pass_fds=passed,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                start_new_session=True,  # the terminal's Ctrl-C is for the trainer alone
                env=_environment(),
            )
            given_up.pop_all()
        for number, (descriptor, _) in self._lent.items():
            messages.send({"lent": number}, [descriptor])
        for request in self._requests.unanswered:
            messages.send({"request": asdict(request)})
        return child, messages

    def _successor(self) -> RecorderPlan:
        """Return the plan for the next recorder process, which goes on after those that died."""
        plan = self._plan
        consumed = self.ring.mark()[Mark.CONSUMED]
        definitions = tuple(text for slot, text in self._definitions if slot < consumed)
        writers = plan.writers
        if self._lock is None:  # each has a spool of its own
            writers += (os.urandom(16).hex(),)
        return replace(plan, drains=self._deaths, definitions=definitions, writers=writers)

    # -- as the queue's worker

    def wake(self) -> None:
        """Wake the recorder, or the thread that works in its place, to empty the ring.

        Does not wait until the ring is empty.
        """
        os.eventfd_write(self._bell, 1)
        if self._instead is not None:
            self._instead.wake()

    def request(
        self, what: Literal["flush", "close"], after: int, timeout: float | None
    ) -> Future[Any]:
        """Send the recorder a request for a flush or the close; return the future of its answer.

        The future is cancelled where nothing empties the ring any more.

        after: how many slots (records and statements) of the ring have to be in the sink before the
            request is carried out.
        timeout: seconds that the request may take; None: as long as it takes.
        """
        with self._guard:
            if self._instead is not None:
                return self._instead.request(what, after, timeout)
            request, future = self._requests.new(what, after, timeout)
            if what == "close":
                self._last = request.number
            if self._is_over:
                self._requests.cancel()
            self._messages.send({"request": asdict(request)})
        self.wake()
        return future

    def revoke(self) -> None:
        """Tell the recorder to make its sink write nothing more; does not wait for that."""
        with self._guard:
            if self._instead is not None:
                self._instead.revoke()
            self._messages.send({"revoke": True})

    def cancel(self) -> None:
        """Kill the recorder, and cancel the futures of all requests to it."""
        with self._guard:
            self._ending = True
            self._child.kill()
            self._requests.cancel()

    def end(self) -> None:
        """Wait for the recorder's end, then free the lock and the shared memory.

        A recorder that has not ended after ten seconds is killed.
        """
        with self._guard:
            self._ending = True
        try:
            self._child.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()
        self._messages.close()
        self._listener.join(_END_SECONDS)
        self._requests.cancel()  # a flush that the recorder had not answered when it was closed
        self._forget_lent()
        os.close(self._bell)
        os.close(self._memory)
        if self._lock is not None:
            self._lock.release()

    def defined(self, slot: int, text: bytes) -> None:
        """Keep the JSON of a definition (of a series or layout), which slot `slot` will hold.

        A recorder that replaces a dead one may begin after that slot of the ring, and still needs
        the definition.
        """
        self._definitions.append((slot, text.decode()))

    def lend(self, nbytes: int) -> tuple[int, int, object]:
        """Allocate memory for one record that is too large for the ring, and share it.

        The recorder maps the memory too. It is freed when memory for another record is lent, which
        the caller must not ask for while a record waits.

        Returns (number of the memory, its address in this process, an object that keeps it alive).
        """
        with self._guard:
            if self._instead is not None:
                return self._instead.lend(nbytes)
            self._forget_lent()  # lent only where no other record waits, so older memory is free
            descriptor = shared_memory(max(1, nbytes))
            memory = mmap.mmap(descriptor, max(1, nbytes))
            self._lendings = number = self._lendings + 1
            self._lent[number] = descriptor, memory
            self._messages.send({"lent": number}, [descriptor])
        return number, addressof(c_char.from_buffer(memory)), memory

    @property
    def is_over(self) -> bool:
        """Whether neither a process nor a thread empties the ring any more."""
        return self._is_over if self._instead is None else self._instead.is_over

    def _forget_lent(self) -> None:
        for descriptor, _ in self._lent.values():
            os.close(descriptor)
        self._lent.clear()

    def warn(self, message: str) -> None:
        """Log `message` as a warning of anchorlib."""
        _log.warning("anchorlib: %s", message)

    # -- the listening thread

    def _listen(self) -> None:
        while True:
            heard = self._messages.receive()
            if heard is not None:
                self._handle(heard[0])
            elif not self._outlived():
                return

    def _handle(self, message: dict[str, Any]) -> None:
        if "warm" in message:
            self.ready.set()
            self.ring.warm(message["warm"])
        elif "log" in message:
            level, text = message["log"]
            _log.log(level, "%s", text)
        elif "answer" in message:
            if message["answer"] == self._last:
                self._ending = True  # the recorder ends by itself now
            fault = message.get("fault")
            self._requests.answer(message["answer"], fault_of(fault) if fault else message["value"])

    def _outlived(self) -> bool:
        """Replace a recorder process that has ended; return whether a new one was started.

        After the third death, or if none can be started, a thread of this process goes on instead.
        A recorder that was meant to end is not replaced. Called when the connection has ended;
        waits for the end of the process.
        """
        with self._guard:
            self._messages.close()
            code = self._child.wait()
            if self._ending:
                return False
            self._deaths += 1
            another = self._deaths < _DEATHS and self._started_again()
            _log.warning(
                "anchorlib: the recorder process of run %s ended (%s); %s goes on with what waits",
                self._plan.options.run,
                f"signal {-code}" if code < 0 else f"exit code {code}",
                "another one" if another else "a thread of this process",
            )
            if not another:
                self._record_here()
            return another

    def _started_again(self) -> bool:
        try:
            self._child, self._messages = self._start()
        except OSError:
            return False
        return True

    def _record_here(self) -> None:
        """Start a thread of this process that empties the ring from now on.

        If that fails, a warning is logged, nothing more is recorded, and all requests are
        cancelled.
        """
        self.ready.set()
        try:
            self._plan = self._successor()
            sink, predecessor = open_plan(self._plan, self.ring, self._lock)
            lent = {number: memoryview(memory) for number, (_, memory) in self._lent.items()}
            self._instead = RecorderThread(
                self.ring,
                sink,
                self._on_start,
                pending=self._requests,
                predecessor=predecessor,
                lent=lent,
            )
        except Exception as fault:  # noqa: BLE001  # no memory, no thread: nobody must wait for it
            _log.warning("anchorlib: nothing more is recorded: %s", fault)
            self._is_over = True
            self._requests.cancel()


def _environment() -> dict[str, str]:
    """Return the recorder's environment variables: this process's, but for two.

    OMP_NUM_THREADS is 1, as the other cores are for the training; PYTHONWARNINGS is left out.
    """
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONWARNINGS"}
    return kept | {"OMP_NUM_THREADS": "1"}


def _paths() -> str:
    """Return the recorder's `sys.path` as JSON: that of the trainer, without two folders.

    The folder of the trainer's program and the current directory are left out, because files there
    may have the names of modules that the recorder imports.
    """
    script = getattr(sys.modules.get("__main__"), "__file__", None)
    own = {"", str(Path(script).absolute().parent) if script else ""} - {_PACKAGES}
    paths = [str(one) for one in sys.path if one not in own]
    return json.dumps([*paths, _PACKAGES])
