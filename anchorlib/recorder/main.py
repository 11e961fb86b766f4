"""The recorder process: `python -m anchorlib.recorder.main NAME DESCRIPTORS`, started by a trainer.

It empties the ring that it shares with the trainer into a sink, and does not import torch. It ends
when the trainer has closed the session; or when the trainer has died, and the last record that the
trainer published is in the sink.
"""

from __future__ import annotations

import ctypes
import logging
import mmap
import os
import select
import signal
import socket
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from anchorlib.errors import StoreError
from anchorlib.recorder.drain import Drain
from anchorlib.recorder.drain_requests import Request
from anchorlib.recorder.process_messages import MOST_TEXT, MessageSocket, encoded_fault
from anchorlib.recorder.recorder_plan import RecorderPlan, open_plan
from anchorlib.recorder.ring import WARM_BYTES, Ring
from anchorlib.recorder.thread import LINGER
from anchorlib.sinks import DONE, Flushing
from anchorlib.store import RankLock

_NICER: Final = 5
_ALIVE_SECONDS: Final = 30.0  # within which a dead trainer's records have to reach a collector


class DrainHost:
    """The `Host` of the drain in this process: it exchanges messages with the trainer's process.

    bell: an eventfd that wakes the thread which runs the drain.
    alone: whether the trainer has ended.
    """

    def __init__(self, ring: Ring, messages: MessageSocket, bell: int) -> None:
        self._messages, self._bell = messages, bell
        self._lent: dict[int, mmap.mmap] = {}
        self._came = threading.Condition()
        self._ring = ring
        self.alone = False
        self.drain: Drain | None = None

    # -- as the drain's host

    def answer(self, request: Request, answer: int | Exception) -> None:
        """Send the trainer the answer to its `request`: a result, or an exception."""
        message: dict[str, Any] = {"answer": request.number}
        if isinstance(answer, Exception):
            self._messages.send(message | {"fault": encoded_fault(answer)})
        else:
            self._messages.send(message | {"value": answer})

    def flushing(self, request: Request, flushing: Flushing, show: Callable[[], None]) -> None:
        """Answer `request` once `flushing` is done.

        A separate thread waits for the flush, so that the drain goes on meanwhile.

        show: updates the counters in the ring, which is done before the answer.
        """

        def wait() -> None:
            try:
                flushing.wait(request.left)
            except Exception as fault:  # noqa: BLE001  # the trainer raises or logs it
                self.answer(request, fault)
            else:
                show()
                self.answer(request, 0)

        if flushing is DONE:
            wait()
        else:
            threading.Thread(target=wait, name="anchorlib-flush", daemon=True).start()

    def warn(self, message: str) -> None:
        """Log a warning; log lines of this process go to the trainer's log."""
        logging.getLogger("anchorlib").warning("anchorlib: %s", message)

    def outside(self, number: int) -> memoryview:
        """Return the shared memory that the trainer sends under `number`; wait until it has come.

        It holds a record that is too large for the ring. Raises StoreError if the trainer ended
        before it had sent the memory.
        """
        with self._came:
            self._came.wait_for(lambda: number in self._lent or self.alone)
            if number not in self._lent:
                raise StoreError("its trainer ended before it had handed the values over")
            return memoryview(self._lent[number])

    def give_back(self, number: int) -> None:
        """Unmap the memory `number`, as its record is in the sink.

        The trainer frees its own mapping when it lends memory for the next large record.
        """
        with self._came:
            self._lent.pop(number, None)

    def warm(self) -> None:
        """Allocate the first pages of the ring, and tell the trainer, which then only maps them."""
        self._ring.warm(WARM_BYTES)
        self._messages.send({"warm": WARM_BYTES})

    # -- the listening thread

    def listen(self) -> None:
        """Handle the trainer's messages until the trainer has ended; runs in a separate thread.

        If a message cannot be read, this process ends with exit code 1; the trainer then replaces
        it by another recorder process.
        """
        try:
            while (heard := self._messages.receive()) is not None:
                self._handle(*heard)
                self.ring_bell()
        except Exception:
            # Without this thread the trainer would wait for ever; the next recorder process gets
            # all unanswered messages again.
            logging.getLogger("anchorlib").exception(
                "anchorlib: a recorder process cannot read its trainer's messages, and ends"
            )
            os._exit(1)
        with self._came:
            self.alone = True
            self._came.notify_all()
        self.ring_bell()

    def _handle(self, message: dict[str, Any], descriptors: list[int]) -> None:
        drain = self.drain
        assert drain is not None
        if "request" in message:
            drain.requests.add(Request(**message["request"]))
        elif "revoke" in message:
            drain.revoke()
        elif "lent" in message:
            self._take(message["lent"], descriptors[0])

    def _take(self, number: int, descriptor: int) -> None:
        memory = mmap.mmap(descriptor, 0)
        os.close(descriptor)
        with self._came:
            self._lent = {number: memory}  # a trainer lends only when no other record waits
            self._came.notify_all()

    def ring_bell(self) -> None:
        """Wake the thread that is in `run`, as there is something to do for the drain."""
        os.eventfd_write(self._bell, 1)

    def run(self, trainer: int) -> None:
        """Run the drain until the session is closed, or the trainer has died.

        After the trainer's death, this stores the records that are left in the ring before it
        returns; they have 30 seconds to reach a collector.

        trainer: a process descriptor (pidfd) of the trainer.
        """
        drain = self.drain
        assert drain is not None
        poll = select.poll()
        poll.register(self._bell, select.POLLIN)
        poll.register(trainer, select.POLLIN)
        while not drain.closed:
            for descriptor, _ in poll.poll(drain.patience(LINGER) * 1000):
                if descriptor == self._bell:
                    os.eventfd_read(self._bell)
                else:
                    self.alone = True
            drain.work()
            if self.alone:
                drain.forsake()
                drain.work()  # records that the trainer published after the last `work`
                drain.leave(_ALIVE_SECONDS)


class Forwarding(logging.Handler):
    """Sends this process's log lines to the trainer's log, or to stderr once the trainer ended."""

    def __init__(self, messages: MessageSocket, host: DrainHost) -> None:
        super().__init__()
        self._messages, self._host = messages, host

    def emit(self, record: logging.LogRecord) -> None:
        """Send one log line to the trainer; write it to stderr if the trainer has ended."""
        text = record.getMessage()[:MOST_TEXT]
        if self._host.alone:
            sys.stderr.write(f"{text}\n")
        else:
            self._messages.send({"log": [record.levelno, text]})


def main(arguments: Sequence[str]) -> None:
    """Run as the recorder of one session, until the session is closed or its trainer has died.

    arguments: the name to show in lists of processes, then the numbers of inherited file
    descriptors: the ring's memory, the bell, the socket to the trainer, the trainer's pidfd, the
    plan, and for a local store the lock of the rank's files.
    """
    name, *numbers = arguments
    memory, bell, end, trainer, plan_file, *lock = map(int, numbers)
    for one in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(one, signal.SIG_IGN)
    os.nice(_NICER)
    _call(name)
    plan = RecorderPlan.read(plan_file)
    ring = Ring(memory, plan.payload, new=False)
    messages = MessageSocket(socket.socket(fileno=end))
    host = DrainHost(ring, messages, bell)
    log = logging.getLogger("anchorlib")
    log.addHandler(Forwarding(messages, host))
    log.setLevel(logging.INFO)
    sink, predecessor = open_plan(plan, ring, RankLock(*lock) if lock else None)
    host.drain = Drain(ring, sink, host, predecessor)
    threading.Thread(target=host.listen, name="anchorlib-listener", daemon=True).start()
    threading.Thread(target=host.warm, name="anchorlib-warm", daemon=True).start()
    host.run(trainer)


def _call(name: str) -> None:
    """Make lists of processes show `name` for this process, where the system allows that."""
    with suppress(OSError, ValueError, IndexError):
        stat = Path("/proc/self/stat").read_text(encoding="utf-8", errors="replace")
        fields = stat.rpartition(")")[2].split()
        start, end = int(fields[45]), int(fields[46])
        text = name.encode(errors="replace")[: end - start - 1]
        ctypes.memmove(start, text.ljust(end - start, b"\0"), end - start)
        Path("/proc/self/comm").write_bytes(b"anchor-recorder")


if __name__ == "__main__":
    main(sys.argv[1:])
    sys.stderr.flush()
    os._exit(0)  # everything is stored, and the trainer waits in `close` for this process to end
