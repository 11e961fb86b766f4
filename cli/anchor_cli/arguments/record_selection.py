"""Which records --step, --pass, --call, --rank, --phase and --mode select: their parsed values."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from anchorlib.errors import OptionError
from anchorlib.names import quoted

__all__ = ["Selection", "parse_steps"]

_MOST_DIGITS: Final = 18  # Python refuses to read a number of thousands


@dataclass(frozen=True, slots=True)
class Selection:
    """Selects records of a tensor by step, pass, call, rank, phase and mode.

    first, stop: the selected steps begin at `first` and end before `stop`; None as `stop` means to
        the end. Negative numbers count from the last recorded step: `within` replaces them.
    pass_index, call, rank, phase, mode: the only value that is selected; None selects all values.
        A mode is in its canonical text, such as "sum:window=10".
    """

    first: int = 0
    stop: int | None = None
    pass_index: int | None = None
    call: int | None = None
    rank: int | None = None
    phase: str | None = None
    mode: str | None = None

    @classmethod
    def of(
        cls,
        step: str | None,
        pass_index: str | None,
        call: str | None,
        rank: str | None,
        phase: str | None,
        mode: str | None,
    ) -> Selection:
        """Parses the values of the options; None stands for an option that is not given.

        Raises ModeError for an invalid mode, OptionError for any other invalid value.
        """
        from anchorlib.modes import parse_mode

        first, stop = parse_steps(step)
        text = None if mode is None else str(parse_mode(mode))
        return cls(
            first,
            stop,
            _number("--pass", pass_index),
            _number("--call", call),
            _number("--rank", rank),
            phase,
            text,
        )

    @property
    def from_the_end(self) -> bool:
        """Whether `first` or `stop` is negative and so counts from the last recorded step."""
        return self.first < 0 or (self.stop or 0) < 0

    def within(self, last_step: int) -> Selection:
        """Returns this selection with negative steps replaced by the steps that they mean.

        Raises OptionError where negative steps turn out to select nothing.

        last_step: the last recorded step, which -1 means.
        """
        if not self.from_the_end:
            return self
        first, stop = (
            step if step is None or step >= 0 else max(last_step + 1 + step, 0)
            for step in (self.first, self.stop)
        )
        if stop is not None and stop <= (first or 0):
            options = f"{self}".partition(" --pass")[0]
            raise OptionError(f"{options} selects nothing: the last step is {last_step}")
        return replace(self, first=first or 0, stop=stop)

    def meets(self, first_step: int, last_step: int) -> bool:
        """Returns whether any step of first_step … last_step (both included) is selected."""
        return last_step >= self.first and (self.stop is None or first_step < self.stop)

    def __str__(self) -> str:
        """Returns the options that make this selection, as text: "--step 5:8 --rank 0"."""
        stop = "" if self.stop is None else self.stop
        steps = f"--step {self.first}:{stop}" if (self.first, self.stop) != (0, None) else ""
        rest = {
            "--pass": self.pass_index,
            "--call": self.call,
            "--rank": self.rank,
            "--phase": self.phase,
            "--mode": self.mode,
        }
        given = [steps, *(f"{name} {value}" for name, value in rest.items() if value is not None)]
        return " ".join(filter(None, given))


def parse_steps(text: str | None) -> tuple[int, int | None]:
    """Parses `--step`: "A", "A:B", "A:" or ":B"; None selects all steps.

    Returns the first step, and the step after the last; None as the latter means to the end.
    Negative steps count from the last recorded step, as in Python's slices. Raises OptionError for
    a text of another form, and where A:B selects nothing.
    """
    if text is None:
        return 0, None
    start, colon, end = text.strip().partition(":")
    if not colon:
        only = _step(start, text)
        return only, None if only == -1 else only + 1
    first = _step(start, text) if start else 0
    stop = _step(end, text) if end else None
    if stop is not None and (stop < 0) == (first < 0) and stop <= first:
        raise OptionError(
            f"--step {text} selects nothing: A:B is half-open, as Python's range, "
            "so B is greater than A"
        )
    return first, stop


def _number(option: str, text: str | None) -> int | None:
    if text is None:
        return None
    if _is_number(text):
        return int(text)
    raise OptionError(f"{option} {quoted(text)}: give one number, 0 or more, as in {option} 0")


def _step(text: str, whole: str) -> int:
    if not _is_number(text.removeprefix("-")):
        raise OptionError(
            f"--step {quoted(whole)}: give a step as in --step 5, or steps as in --step 5:10, 5: "
            "or :10; -1 is the last"
        )
    return int(text)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS
