"""Errors anchorlib raises on purpose.

AnchorError
├── UnknownTensorError   (KeyError)            a selector that matches nothing
├── AmbiguousTensorError (LookupError)         a selector that names several series, not one
├── InvalidNameError     (ValueError)          a tensor or run name that cannot be one
├── ModeError            (ValueError)          an invalid mode, or tensors that it cannot fold
├── OptionError          (ValueError)          an argument or setting outside its choices
├── UnknownDTypeError    (ValueError)          a dtype that anchorlib cannot store
├── NotATensorError      (TypeError)           a value that is no tensor was anchored
├── UnsupportedError     (NotImplementedError) a situation that anchors refuse; says what to do
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
    """A selector matches no tensor.

    suggested: whether the message offers selectors that may have been meant.
    """

    suggested = False


class AmbiguousTensorError(AnchorError, LookupError):
    """A selector names several series where exactly one is wanted."""


class InvalidNameError(AnchorError, ValueError):
    """A tensor name or run name breaks the rules for names."""


class ModeError(AnchorError, ValueError):
    """A mode is invalid, or cannot fold the tensors it was given."""


class OptionError(AnchorError, ValueError):
    """An argument or an environment variable is outside its choices."""


class UnknownDTypeError(AnchorError, ValueError):
    """A dtype that anchorlib cannot store."""


class NotATensorError(AnchorError, TypeError):
    """Something that is not a tensor was anchored or printed."""


class UnsupportedError(AnchorError, NotImplementedError):
    """A situation in which an anchor would record wrong values; the message says what to do."""


class SessionError(AnchorError, RuntimeError):
    """A second session in one process, or the use of a closed one."""


class CommandError(AnchorError, RuntimeError):
    """A command that was to record a run failed, or did not record it."""


class QueueFullError(AnchorError, RuntimeError):
    """The queue was full, and the session was started with on_full="raise"."""


class FlushTimeoutError(AnchorError, TimeoutError):
    """A flush or a close did not finish within its time."""


class RunNotFoundError(AnchorError, FileNotFoundError):
    """No such run, or a directory that is no run."""


class RunExistsError(AnchorError, FileExistsError):
    """This rank of the run exists already."""


class RunBusyError(AnchorError, BlockingIOError):
    """Another live process writes this rank of the run."""


class StoreError(AnchorError, OSError):
    """A store cannot be read or written."""


class DamagedError(StoreError):
    """A store holds other bytes than were written: they do not fit their digest or checksum."""


class RaggedError(AnchorError, ValueError):
    """One array was asked for, but the records differ in shape or dtype."""


class ValuesNotKeptError(AnchorError, LookupError):
    """Values were asked for, but only summaries were kept."""


class MissingExtraError(AnchorError, ImportError):
    """An optional package is not installed."""


class ClusterError(AnchorError, ConnectionError):
    """A dask cluster could not be reached, or could not answer for the whole."""


class CollectorError(AnchorError, ConnectionError):
    """The collector could not be reached, or refused.

    kind: the kind of failure, in one word ("busy", "disk", "token", "unreachable", …): a value of
        `anchorlib.wire.Kind`; "" where no call failed.
    """

    kind = ""
