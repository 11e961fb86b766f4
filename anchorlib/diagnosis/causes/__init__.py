"""From which records each record was computed, and which differences no such parent explains."""

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
    HistoryParting,
    drawn_otherwise,
    partings,
    partings_of,
    settings,
)
from anchorlib.diagnosis.causes.lineage import Lineage
from anchorlib.diagnosis.causes.overflows import Overflows, overflows
from anchorlib.diagnosis.causes.parentage import Role, plain
from anchorlib.diagnosis.causes.skips import Skips, skips
from anchorlib.diagnosis.causes.starting_values import STARTS, StartingValues, starting_values
from anchorlib.diagnosis.causes.upstream import upstream

__all__ = [
    "DIFFERS",
    "EQUAL",
    "HISTORY",
    "MODULE",
    "STARTS",
    "UNMATCHED",
    "Frontier",
    "HistoryParting",
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
    "settings",
    "skips",
    "starting_values",
    "upstream",
]
