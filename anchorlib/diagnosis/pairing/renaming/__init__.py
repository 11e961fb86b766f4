"""Which name of one run stands for which name of the other, where their names differ.

evidence           what names are matched by besides their spelling: shapes, operations
names              matches names by how they are spelled
likeness           matches names by their records: by equal bits, and at last by like norms
name_graph         the graph of one run's names: which tensors are computed from which
positions          matches names by their place in the two graphs
beginnings         names that can be matched by themselves, without a matched neighbour
match_propagation  matches that spread from matched names to their neighbours
"""

from anchorlib.diagnosis.pairing.renaming.evidence import made_by, named
from anchorlib.diagnosis.pairing.renaming.likeness import match_bits, match_figures
from anchorlib.diagnosis.pairing.renaming.names import Made, Shapes, by_name
from anchorlib.diagnosis.pairing.renaming.positions import match_positions

__all__ = [
    "Made",
    "Shapes",
    "by_name",
    "made_by",
    "match_bits",
    "match_figures",
    "match_positions",
    "named",
]
