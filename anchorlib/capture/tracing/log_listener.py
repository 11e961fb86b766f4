"""Listens to what torch logs of a kind; the program sees no message that it did not ask for."""

from __future__ import annotations

import logging
from collections.abc import Callable

from anchorlib.torch_private import loggers_of

__all__ = ["Hearing"]


class Hearing(logging.Filter):
    """A filter that hands each message to a function, and lets it through where it was asked for.

    As a filter it is called before any handler is, so that the program's own handlers, and those of
    the loggers above, see no message more than without it.
    """

    def __init__(self, on_message: Callable[[str], None]) -> None:
        super().__init__()
        self._on_message = on_message
        self._levels: dict[logging.Logger, int] = {}
        self._enabled: dict[logging.Logger, int] = {}

    def begin(self, kind: str) -> bool:
        """Listen to torch's loggers of this kind; returns whether there are any."""
        for logger in loggers_of(kind):
            if logger in self._levels:
                continue
            self._levels[logger] = logger.level
            self._enabled[logger] = logger.getEffectiveLevel()
            logger.addFilter(self)
            logger.setLevel(logging.DEBUG)
        return bool(self._levels)

    def end(self) -> None:
        """Stop listening, and put each logger's level back."""
        for logger, level in self._levels.items():
            logger.removeFilter(self)
            logger.setLevel(level)
        self._levels.clear()

    def filter(self, record: logging.LogRecord) -> bool:
        """Hand a message over; whether the program sees it."""
        self._on_message(record.getMessage())
        logger = logging.getLogger(record.name)
        return record.levelno >= self._enabled.get(logger, logging.DEBUG)
