"""Readers of runs and ranks; a rank that several collectors recorded is joined from its parts."""

from anchorlib.store.read.rank import RankReader
from anchorlib.store.read.remnants import Remnants
from anchorlib.store.read.rereading import stored_records
from anchorlib.store.read.run import RunReader, end_copy, open_parts
from anchorlib.store.read.run_digests import digests_bytes, digests_of_run, object_name
from anchorlib.store.read.run_figures import MergedSeries, RunFigures, common_shape
from anchorlib.store.read.run_index import index_bytes, parsed_index, sealed_figures
from anchorlib.store.read.run_steps import steps_bytes, steps_of_run
from anchorlib.store.read.sessions import has_ended
from anchorlib.store.read.stored_fingerprints import stored_fingerprint
from anchorlib.store.read.usable_memory import memory_here

__all__ = [
    "MergedSeries",
    "RankReader",
    "Remnants",
    "RunFigures",
    "RunReader",
    "common_shape",
    "digests_bytes",
    "digests_of_run",
    "end_copy",
    "has_ended",
    "index_bytes",
    "memory_here",
    "object_name",
    "open_parts",
    "parsed_index",
    "sealed_figures",
    "steps_bytes",
    "steps_of_run",
    "stored_fingerprint",
    "stored_records",
]
