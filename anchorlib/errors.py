"""Errors anchorlib raises on purpose.

AnchorError
├── UnknownTensorError   (KeyError)            a selector that matches nothing
├── AmbiguousTensorError (LookupError)         a selector that names several series, not one
├── InvalidNameError     (ValueError)          a tensor or run name that cannot be one
├── ModeError            (ValueError)          an invalid mode, or tensors that it cannot fold
├── OptionError          (ValueError)          an argument or setting outside its choices
├── UnknownDTypeError    (ValueError)          a dtype that anchorlib cannot store
├── NotATensorError      (TypeError)           a value that is no tensor was anchored
├── UnsupportedError     (NotImplementedError) what cannot be done; mostly says what to do
├── SessionError         (RuntimeError)        a second session, or one that is closed
├── CommandError         (RuntimeError)        a command that was to record a run failed
├── QueueFullError       (RuntimeError)        on_full="raise", and the queue was full
├── FlushTimeoutError    (TimeoutError)        flush or close did not finish in time
├── RunNotFoundError     (FileNotFoundError)   no such run, or a directory that is no run
├── RunExistsError       (FileExistsError)     this rank of the run exists already
├── RunBusyError         (BlockingIOError)     another live process writes this rank
├── StoreError           (OSError)             a store that cannot be read or written
│   └── DamagedError     (OSError)             what a store holds is not what was written
├── RaggedError          (ValueError)          one array was asked for, but shapes differ
├── ValuesNotKeptError   (LookupError)         values were asked for, but only summaries were kept
├── MissingExtraError    (ImportError)         an optional package is not installed
├── ClusterError         (ConnectionError)     a dask cluster could not be reached, or answer
└── CollectorError       (ConnectionError)     the collector could not be reached, or refused

A message says what, where and what to do, in one line. Each class takes the finished message, so
that errors survive pickling.
"""

from __future__ import annotations

__all__ = [
    "AmbiguousTensorError",
    "AnchorError",
    "ClusterError",
    "CollectorError",
    "CommandError",
    "DamagedError",
    "FlushTimeoutError",
    "InvalidNameError",
    "MissingExtraError",
    "ModeError",
    "NotATensorError",
    "OptionError",
    "QueueFullError",
    "RaggedError",
    "RunBusyError",
    "RunExistsError",
    "RunNotFoundError",
    "SessionError",
    "StoreError",
    "UnknownDTypeError",
    "UnknownTensorError",
    "UnsupportedError",
    "ValuesNotKeptError",
]


class AnchorError(Exception):
    """The root of all errors that anchorlib raises on purpose."""

    def __str__(self) -> str:
        # KeyError shows the repr of its argument and OSError its errno: both hide the sentence.
        return str(self.args[0]) if self.args else ""


class UnknownTensorError(AnchorError, KeyError):
    """Raised where a selector matches no tensor, or a text is no selector.

    suggested: whether the message offers selectors that may have been meant.
    """

    suggested = False


class AmbiguousTensorError(AnchorError, LookupError):
    """Raised where a selector matches several series, but exactly one series is wanted."""


class InvalidNameError(AnchorError, ValueError):
    """Raised where a tensor name or run name breaks the rules for names."""


class ModeError(AnchorError, ValueError):
    """Raised where a mode is invalid, or cannot fold the tensors that it was given for."""


class OptionError(AnchorError, ValueError):
    """Raised where an argument or an environment variable is not one of the allowed choices.

    A choice may also be disallowed by the runs: a rank that recorded nothing, or traces that were
    asked for but not recorded.
    """


class UnknownDTypeError(AnchorError, ValueError):
    """Raised for a dtype that anchorlib cannot store."""


class NotATensorError(AnchorError, TypeError):
    """Raised where something that is not a tensor is anchored or printed."""


class UnsupportedError(AnchorError, NotImplementedError):
    """Raised where something cannot be done; the message mostly says what to do instead.

    An anchor raises it where it would record wrong values. Other cases are a file format that
    cannot hold the values, and values that no other process can find.
    """


class SessionError(AnchorError, RuntimeError):
    """Raised where a process opens a second session, uses a closed one, or may not graft a run.

    To graft a run is to replace the values at anchors by those of another run: that needs an active
    session, and a run that is neither the session's own nor a second one.
    """


class CommandError(AnchorError, RuntimeError):
    """Raised where a command that was to record a run failed, or recorded no run."""


class QueueFullError(AnchorError, RuntimeError):
    """Raised in a session started with on_full="raise" when the queue of records is full."""


class FlushTimeoutError(AnchorError, TimeoutError):
    """Raised where a flush or a close did not finish within its time."""


class RunNotFoundError(AnchorError, FileNotFoundError):
    """Raised where no run has the given name, or the given directory is no run."""


class RunExistsError(AnchorError, FileExistsError):
    """Raised where the rank that is to be recorded exists already in the run."""


class RunBusyError(AnchorError, BlockingIOError):
    """Raised where another live process writes the same rank of the run."""


class StoreError(AnchorError, OSError):
    """Raised where a store cannot be read or written."""


class DamagedError(StoreError):
    """Raised where stored bytes are not those written: their digest or checksum differs."""


class RaggedError(AnchorError, ValueError):
    """Raised where one array of all records is asked for, but records differ in shape or dtype."""


class ValuesNotKeptError(AnchorError, LookupError):
    """Raised where the values of records are asked for, but only their summaries were kept."""


class MissingExtraError(AnchorError, ImportError):
    """Raised where an optional package that is needed is not installed."""


class ClusterError(AnchorError, ConnectionError):
    """Raised where a dask cluster could not be reached, or answered only a part of a question."""


class CollectorError(AnchorError, ConnectionError):
    """Raised where the collector could not be reached, or refused a request.

    kind: the kind of failure, in one word such as "busy", "disk", "token" or "unreachable": a value
        of `anchorlib.wire.Kind`; "" where the error is not a failed call to a collector.
    """

    kind = ""
