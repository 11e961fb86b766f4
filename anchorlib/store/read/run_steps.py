"""Counts, extremes and histograms of an archived run's steps, over all ranks, in one object.

    run1.zarr/steps-0123456789abcdef.json.zst
        see `anchorlib.store.seal.step_figures`

Thanks to it the HTML page of a run opens only one rank, however many there are. Like the digests of
a run (`run_digests`), the object is named by the SHA-256 of its bytes. An object that is missing,
damaged or of other ranks than those of the index is ignored: then ranks are opened.
"""

from __future__ import annotations

from typing import Final

from anchorlib.store.format import encode, steps_key, whole
from anchorlib.store.locations import Location
from anchorlib.store.read.run_digests import object_name
from anchorlib.store.read.run_figures import RunFigures
from anchorlib.store.seal import (
    MOST_BYTES,
    StepFigures,
    deflated,
    read_line,
    read_step_figures,
    step_figures_document,
)

__all__ = ["steps_bytes", "steps_of_run"]

FORMAT: Final = "anchor-steps"
VERSION: Final = 1


def steps_bytes(figures: StepFigures) -> bytes:
    """Return the bytes of the object with counts, extremes and histograms of each step of a run.

    Raises ValueError where the object would be larger than readers accept.
    """
    line = encode({"format": FORMAT, "version": VERSION, **step_figures_document(figures)})
    if len(line) > MOST_BYTES:
        raise ValueError(f"the figures of a run's steps would be larger than {MOST_BYTES} bytes")
    return deflated(line)


def steps_of_run(run: Location, figures: RunFigures | None) -> StepFigures | None:
    """Read counts, extremes and histograms of an archived run's steps, in one request.

    figures: the run's index, None for a run without one. Return None without an index, where the
        index states no object with these figures, or where the object is missing, damaged, of a
        later version or of other ranks than the index. Raises CollectorError where the archive
        cannot be reached.
    """
    if figures is None or not figures.by_step:
        return None
    data = run.get(steps_key(figures.by_step), 0, MOST_BYTES)
    if data is None or object_name(data) != figures.by_step:
        return None
    try:
        document = read_line(data)
        if document["format"] != FORMAT or whole(document["version"]) > VERSION:
            return None  # figures of a later version may mean something else
        figures_of_steps = read_step_figures(document)
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return figures_of_steps if figures_of_steps.ranks == figures.ranks else None
