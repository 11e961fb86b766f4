"""Origins: differences that no recorded parent explains.

origins          the origin, with all that is known of it
judged_together  origins grouped by their cause; an optimizer's updates are judged together here
preceding        why a record that differs before the first origin is no origin
reference        origins measured from a third run that is nearer to the truth
nearness         which of two records is nearer to a third
cuts             pairs that are not compared: modules called or used otherwise for equal work
cancelling       by how much the terms of a parameter's gradient are larger than their sum
first_step       the first step that differs, and its records
learning         whether gradients and updates of the first step that differs agree but for rounding
other_calls      modules that are called or used differently, known by shapes, order and rows
intermediates    results inside a model by which the runs differ on their way to equal learning
returned         outputs of models in two forms, as the losses behind them show
encodings        constants in another encoding, and inputs that are handed over in another order
idle_elements    values that differ only in elements that no loss reads
left_out_rows    rows of an output that one run alone computes, and that no loss reads
numbers_read     single numbers from which a larger recorded number is made
turns            backward passes that contribute in another order to equal gradients
packed           packed sequences, whose rows stand in the order of time and then of length
other_uses       values that the runs use differently, and whose gradients are other quantities
row_order        records whose rows stand in another order
partials         gradients of which one run alone states that it recorded only a part
"""

from anchorlib.diagnosis.judgement.origins.cuts import Cuts, cuts, equal_learning
from anchorlib.diagnosis.judgement.origins.judged_together import OriginGroup, groups_of_origins
from anchorlib.diagnosis.judgement.origins.learning import LIMIT, LIMIT_LOW
from anchorlib.diagnosis.judgement.origins.nearness import Nearness
from anchorlib.diagnosis.judgement.origins.numbers_read import share_of_reader
from anchorlib.diagnosis.judgement.origins.origins import Origin, Replay, TracedPath
from anchorlib.diagnosis.judgement.origins.partials import Partials, partials
from anchorlib.diagnosis.judgement.origins.preceding import preceding
from anchorlib.diagnosis.judgement.origins.reference import measured_from

__all__ = [
    "LIMIT",
    "LIMIT_LOW",
    "Cuts",
    "Nearness",
    "Origin",
    "OriginGroup",
    "Partials",
    "Replay",
    "TracedPath",
    "cuts",
    "equal_learning",
    "groups_of_origins",
    "measured_from",
    "partials",
    "preceding",
    "share_of_reader",
]
