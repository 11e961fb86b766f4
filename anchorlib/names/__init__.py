"""Names, kinds and selectors of tensors, and suggestions for names that match nothing.

spelling          the rules for names and kinds; how they are joined and split
escaping          how a name, a selector or an address is shown
selectors         the ways to read one selector; matching where not all tensors are known yet
tensor_selection  the tensors that selectors match, where all tensors are known
suggestions       "did you mean …?", the end of an error about an unknown name
"""

from anchorlib.names.escaping import escape, quoted, shown_address
from anchorlib.names.selectors import Selector, below, matches, parse, parse_list
from anchorlib.names.spelling import (
    KINDS,
    MAX_NAME_BYTES,
    OPTIMIZER_KIND,
    check_name,
    check_run_name,
    check_stored_run_name,
    graft_name,
    is_kind,
    is_operand_kind,
    join,
    noise_name,
    split,
)
from anchorlib.names.suggestions import near, suggest
from anchorlib.names.tensor_selection import select

__all__ = [
    "KINDS",
    "MAX_NAME_BYTES",
    "OPTIMIZER_KIND",
    "Selector",
    "below",
    "check_name",
    "check_run_name",
    "check_stored_run_name",
    "escape",
    "graft_name",
    "is_kind",
    "is_operand_kind",
    "join",
    "matches",
    "near",
    "noise_name",
    "parse",
    "parse_list",
    "quoted",
    "select",
    "shown_address",
    "split",
    "suggest",
]
