"""The data of a served page about runs that may still grow, made again once records were added."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Sequence
from typing import Any

from anchorlib.diagnosis import Comparison
from anchorlib.errors import AnchorError, CollectorError
from anchorlib.reading import Run
from anchorlib.report.binning import BinCache
from anchorlib.report.document import document_text
from anchorlib.report.gathering import gather
from anchorlib.report.rendering import contrasted
from anchorlib.report.run_view import PageBudget

__all__ = ["Followed"]


class Followed:
    """The data of a page about some runs, brought up to date when a browser asks for it.

    compared: returns the comparisons of the first run with each of the others. source: the address
        where the page asks for newer data.
    """

    def __init__(
        self,
        runs: Sequence[Run],
        compared: Callable[[Sequence[Run]], list[Comparison]],
        source: str,
    ) -> None:
        self._runs = runs
        self._compared = compared
        self._source = source
        self._caches = [BinCache() for _ in runs]
        self._lock = threading.Lock()
        self._text = ""
        self._tag = ""

    def latest(self, have: str) -> tuple[str, str]:
        """Return the data of the page and its tag, which names this state of the runs.

        The data is made again if the runs have changed since. A browser that has data already does
        not wait while another request makes newer data: it gets the present data.

        have: the tag of the data that the browser has; "" if it has none.

        Raises CollectorError or StoreError if a run cannot be read.
        """
        if self._lock.acquire(blocking=not (have and self._tag)):
            try:
                self._refresh()
            finally:
                self._lock.release()
        return self._text, self._tag

    def _refresh(self) -> None:
        tag = hashlib.sha256(repr([_state(run) for run in self._runs]).encode()).hexdigest()[:16]
        if tag == self._tag:
            return
        budget = PageBudget()
        views = [
            gather(run, budget=budget, cache=cache)
            for run, cache in zip(self._runs, self._caches, strict=True)
        ]
        comparisons, trouble = self._judged()
        contrasts = contrasted(views, comparisons, budget)
        self._text = document_text(views, contrasts, source=self._source, tag=tag, trouble=trouble)
        self._tag = tag

    def _judged(self) -> tuple[list[Comparison], str]:
        """Return the comparisons and ""; or [] and a sentence on why the runs cannot be compared.

        The page then shows the runs without comparison. For a single run the result is ([], "").
        Raises CollectorError if a collector does not answer.
        """
        if len(self._runs) < 2:
            return [], ""
        try:
            return self._compared(self._runs), ""
        except CollectorError:
            raise
        except AnchorError as error:
            return [], f"The runs could not be compared: {error}"


def _state(run: Run) -> tuple[Any, ...]:
    """Return a value that differs from an earlier one if the page of this run would differ.

    It holds the run's state, whether its writer lives, and counts of its records and gaps.
    """
    gaps = sum(gap.count for gap in run.gaps())
    records = [(info.name, info.kind, info.mode, info.records) for info in run.tensors()]
    return (run.state, run.live, gaps, records)
