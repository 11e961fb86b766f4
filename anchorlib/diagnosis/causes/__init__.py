"""From which records each record was computed, and which differences no such parent explains."""

from anchorlib.diagnosis.causes.ancestry import Ancestry, Link, between
from anchorlib.diagnosis.causes.frontier import EQUAL, UNMATCHED, Frontier, frontier
from anchorlib.diagnosis.causes.headers import (
    MODULE,
    config_diff,
    made_otherwise,
    mode_since,
    module_key,
    other_values,
)
from anchorlib.diagnosis.causes.histories import (
    HISTORY,
    Parting,
    drawn_otherwise,
    partings,
    settings,
)
from anchorlib.diagnosis.causes.lineage import Lineage, StepLineage
from anchorlib.diagnosis.causes.parentage import Role, plain
from anchorlib.diagnosis.causes.skips import Skips, skips

__all__ = [
    "EQUAL",
    "HISTORY",
    "MODULE",
    "UNMATCHED",
    "Ancestry",
    "Frontier",
    "Lineage",
    "Link",
    "Parting",
    "Role",
    "Skips",
    "StepLineage",
    "between",
    "config_diff",
    "drawn_otherwise",
    "frontier",
    "made_otherwise",
    "mode_since",
    "module_key",
    "other_values",
    "partings",
    "plain",
    "settings",
    "skips",
]
