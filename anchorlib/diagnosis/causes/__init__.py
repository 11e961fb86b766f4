"""From which records each record was computed, and which differences no such parent explains.

ancestry, lineage    the parents of one record, from the stored edges of its run
step_layouts         the records of a table in blocks of one rank, phase and step
parentage            the parents of all records of a step, resolved once for equal steps
reach                whether anything differs among records that may be unknown parents
frontier             which differences no other recorded difference explains: the origins
copies               values that are copies of earlier records, found by their bits
grafted              reruns that were handed the other run's values
headers, histories   where the configurations of two runs differ
starting_values      parameters and buffers that begin with other values
skips, overflows     steps that a GradScaler skipped, and why
upstream             all tensors that one tensor was computed from
"""

from anchorlib.diagnosis.causes.ancestry import Link, between
from anchorlib.diagnosis.causes.frontier import DIFFERS, EQUAL, UNMATCHED, Frontier, frontier
from anchorlib.diagnosis.causes.grafted import is_grafted
from anchorlib.diagnosis.causes.headers import (
    MODULE,
    config_diff,
    from_outside,
    made_otherwise,
    mode_since,
    module_key,
    other_values,
)
from anchorlib.diagnosis.causes.histories import (
    HISTORY,
    HistoryDivergence,
    drawn_otherwise,
    partings,
    partings_of,
    setting_at,
    settings,
)
from anchorlib.diagnosis.causes.lineage import Lineage
from anchorlib.diagnosis.causes.overflows import Overflows, overflows
from anchorlib.diagnosis.causes.parentage import INPUT, Role, plain
from anchorlib.diagnosis.causes.skips import Skips, skips
from anchorlib.diagnosis.causes.starting_values import STARTS, StartingValues, starting_values
from anchorlib.diagnosis.causes.upstream import upstream

__all__ = [
    "DIFFERS",
    "EQUAL",
    "HISTORY",
    "INPUT",
    "MODULE",
    "STARTS",
    "UNMATCHED",
    "Frontier",
    "HistoryDivergence",
    "Lineage",
    "Link",
    "Overflows",
    "Role",
    "Skips",
    "StartingValues",
    "between",
    "config_diff",
    "drawn_otherwise",
    "from_outside",
    "frontier",
    "is_grafted",
    "made_otherwise",
    "mode_since",
    "module_key",
    "other_values",
    "overflows",
    "partings",
    "partings_of",
    "plain",
    "setting_at",
    "settings",
    "skips",
    "starting_values",
    "upstream",
]
