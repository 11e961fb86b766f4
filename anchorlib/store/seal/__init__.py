"""Sealed ranks: a closed rank as a few large, compressed objects that never change any more.

    rank0/sealed.json                   written last: size and SHA-256 of every object below
          index.json.zst                totals of each series, for listings and pooled histograms
          zarr.json                     a zarr v3 group; every array below is sharded
          catalog/zarr.json, c/0        the catalogue as it was written
          records/int64/…, float64/…    the table: all columns of a dtype are rows of one array
          forms/float32_8x8/value/…     (record, 8, 8), sorted by series: a tensor is one range
                           /labels/…    series, step, pass, call, and the row in the live rank
          ops/log/…                     traced operations, where any were

    seal(run, reader, FolderTarget(path)) ─▶ Sealed          the same rank gives the same bytes
    rank_location(run, 0)                 ─▶ Location        live or sealed: readers need not care
    read_sealed(run, 0), read_index(run, 0)                  one request each

A live rank is one that its writer wrote, not sealed yet. A folder without `sealed.json` was not
sealed to its end, and readers ignore it. Any zarr v3 reader opens the arrays; anchorlib's readers
find every row, value and checksum under the row number with which it was written.
"""

from anchorlib.store.seal.codecs import deflated
from anchorlib.store.seal.faults import sealed_faults
from anchorlib.store.seal.index_format import (
    MOST_BYTES,
    MOST_STEPS,
    RankLists,
    loss_scale,
    numbers_of,
    ranges_of,
    read_line,
)
from anchorlib.store.seal.manifest import Sealed, is_unfinished, read_sealed
from anchorlib.store.seal.object_target import FolderTarget
from anchorlib.store.seal.rank_digests import RankDigests, digests_of, read_digests
from anchorlib.store.seal.rank_index import RankFigures, SeriesFigures, figures_of, read_index
from anchorlib.store.seal.sealed_location import SealedRank, rank_location
from anchorlib.store.seal.sealing import seal
from anchorlib.store.seal.step_counting import step_figures_of
from anchorlib.store.seal.step_figures import OFFSET, SPAN, StepFigures, StepPool
from anchorlib.store.seal.step_format import read_step_figures, step_figures_document

__all__ = [
    "MOST_BYTES",
    "MOST_STEPS",
    "OFFSET",
    "SPAN",
    "FolderTarget",
    "RankDigests",
    "RankFigures",
    "RankLists",
    "Sealed",
    "SealedRank",
    "SeriesFigures",
    "StepFigures",
    "StepPool",
    "deflated",
    "digests_of",
    "figures_of",
    "is_unfinished",
    "loss_scale",
    "numbers_of",
    "ranges_of",
    "rank_location",
    "read_digests",
    "read_index",
    "read_line",
    "read_sealed",
    "read_step_figures",
    "seal",
    "sealed_faults",
    "step_figures_document",
    "step_figures_of",
]
