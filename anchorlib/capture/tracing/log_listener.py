"""Receives what torch logs, without showing the program messages that it did not ask for."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from anchorlib.torch_private import loggers_of

__all__ = ["LogListener"]


_OURS: Final = logging.DEBUG - 1
"""The level that a logger has while it is listened to: programs choose DEBUG, and nothing below."""


class LogListener(logging.Filter):
    """A logging filter that hands each message to a function before the logger handles the message.

    While it listens, the loggers make messages of every level. A filter is called before any
    handler is: it stops the messages that the program would not see without it, before the
    program's own handlers, and those of parent loggers, get them. A level that the program sets
    while this filter listens is in force at once, and stays after `end`.

    on_message: the function.
    """

    def __init__(self, on_message: Callable[[logging.LogRecord], None]) -> None:
        super().__init__()
        self._on_message = on_message
        self._levels: dict[logging.Logger, int] = {}

    def begin(self, kind: str) -> None:
        """Listen to those of torch's loggers that log messages of a kind.

        kind: torch's name of the kind, such as "aot_graphs".
        """
        for logger in loggers_of(kind):
            if logger in self._levels:
                continue
            self._levels[logger] = logger.level
            logger.addFilter(self)
            logger.setLevel(_OURS)

    def end(self) -> None:
        """Stop listening, and give each logger its level from before `begin`.

        A level that the program has changed since `begin` stays as it is.
        """
        for logger, level in self._levels.items():
            logger.removeFilter(self)
            if logger.level == _OURS:
                logger.setLevel(level)
        self._levels.clear()

    def filter(self, record: logging.LogRecord) -> bool:
        """Hand a message to the function; return whether the program is to see the message."""
        self._on_message(record)
        logger = logging.getLogger(record.name)
        return logger.level != _OURS or record.levelno >= self._own_level(logger)

    def _own_level(self, logger: logging.Logger) -> int:
        """Return the level that `logger` would have if anchorlib did not listen to it."""
        above = logger.parent or logger
        return self._levels.get(logger) or above.getEffectiveLevel()
