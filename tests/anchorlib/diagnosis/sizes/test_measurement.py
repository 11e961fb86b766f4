"""How far two records are apart, beside exact arithmetic in fractions."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from anchorlib.diagnosis.pairing.join import align
from anchorlib.diagnosis.sizes import measurement, values
from anchorlib.diagnosis.sizes.differences import FILLED
from anchorlib.diagnosis.sizes.measurement import max_ulp, measure
from anchorlib.diagnosis.sizes.measures import Measure
from anchorlib.dtypes import DTYPES, DType
from anchorlib.record import Record
from tests import oracle
from tests.anchorlib.diagnosis.tables import table
from tests.anchorlib.store.records import floats, record
from tests.seeds import examples
from tests.strategies import PART, dtype_names, shapes, storage_arrays

Array = np.ndarray[Any, Any]
FLOATS = dtype_names("float", "complex")
HUGE = 1e120
FAR = 400  # powers of two between the largest and the smallest: one is nothing beside the other


def _doubles(*values: float) -> tuple[Array, str]:
    return np.array(values, "<f8"), "float64"


@st.composite
def pairs(
    draw: st.DrawFn, names: st.SearchStrategy[str] = FLOATS, *, other: bool = False
) -> tuple[tuple[Array, str], tuple[Array, str]]:
    """Two storage arrays of one shape, many elements of which are the same."""
    name = draw(names)
    second = (
        draw(names.filter(lambda n: DTYPES[n].family == DTYPES[name].family)) if other else name
    )
    shape = draw(shapes())
    one = draw(storage_arrays(name, shape))
    two = draw(storage_arrays(second, shape))
    if name == second:
        same = draw(st.lists(st.booleans(), min_size=one.size, max_size=one.size))
        two = np.where(np.array(same, bool).reshape(shape), one, two).astype(one.dtype)
    return (one, name), (two, second)


def measured(a: tuple[Array, str], b: tuple[Array, str], **options: Any) -> Measure:
    """The measure of a pair, whether it differs or not."""
    return measured_all([a], [b], **options)[0]


def measured_all(
    a: list[tuple[Array, str]], b: list[tuple[Array, str]], *, kept: bool = True
) -> list[Measure]:
    sides = ([made(n, *one, kept=kept) for n, one in enumerate(side)] for side in (a, b))
    alignment = align(*(table(side) for side in sides))
    found = measure(alignment, np.arange(len(alignment)))
    return [found.at(place) for place in range(len(found))]


def made(number: int, raw: Array, dtype: str, *, kept: bool = True) -> Record:
    return record(f"t{number}", 0, raw, dtype=dtype, order=number, values=kept)


class Exact:
    """What a measure should say, of numbers as they are."""

    def __init__(self, a: tuple[Array, str], b: tuple[Array, str]) -> None:
        one, two = oracle.numbers(*a), oracle.numbers(*b)
        both = list(zip(one, two, strict=True))
        self.finite = [
            (Fraction(x), Fraction(y))
            for x, y in both
            if math.isfinite(x) and math.isfinite(y) and not x == y <= FILLED
        ]
        self.apart = [y - x for x, y in self.finite]
        self.nonfinite = sum(
            not (math.isfinite(x) and math.isfinite(y))
            and x != y
            and not (math.isnan(x) and math.isnan(y))
            for x, y in both
        )
        self.zeros = sum((x == 0) != (y == 0) for x, y in both)
        self.norm = oracle.root(
            sum(
                (Fraction(x) ** 2 for x, y in both if math.isfinite(x) and not x == y <= FILLED),
                Fraction(),
            )
        )
        self.squares = [
            sum((pair[side] ** 2 for pair in self.finite), Fraction()) for side in (0, 1)
        ]
        sizes = [abs(x) for x in (*one, *two) if math.isfinite(x) and x]
        self.spread = math.log2(max(sizes, default=1)) - math.log2(min(sizes, default=1))
        parts = 2 if a[1] in PART else 1
        widths = [raw.itemsize for raw, _ in (a, b)]
        if a[1] == b[1]:
            data = [raw.tobytes() for raw, _ in (a, b)]
            cells = [[d[i : i + widths[0]] for i in range(0, len(d), widths[0])] for d in data]
            self.bits = sum(x != y for x, y in zip(*cells, strict=True))
        else:
            coarser = max((DTYPES[name] for _, name in (a, b)), key=lambda kind: kind.eps)
            unlike = [
                rounded(x, coarser) != rounded(y, coarser) and not (math.isnan(x) and math.isnan(y))
                for x, y in both
            ]
            self.bits = sum(any(unlike[i : i + parts]) for i in range(0, len(unlike), parts))

    def ratio(self) -> float:
        """‖b − a‖ / ‖a‖."""
        if not self.finite:
            return math.nan
        over = sum((d * d for d in self.apart), Fraction())
        if not over:
            return 0.0
        return oracle.root(over / self.squares[0]) if self.squares[0] else math.inf

    def cosine_distance(self) -> float:
        if not self.finite:
            return math.nan
        one, two = self.squares
        if not one or not two:
            return math.nan if one or two else 0.0
        dot = sum((x * y for x, y in self.finite), Fraction())
        cosine = oracle.root(dot * dot / (one * two))
        return 1 - cosine if dot > 0 else 1 + cosine


def rounded(value: float, kind: DType) -> Fraction | float:
    """The nearest value of `kind`, ties to even, as if it had no largest one."""
    if not math.isfinite(value) or not value:
        return value
    unit = Fraction(2) ** max(oracle.exponent(value), kind.smallest_normal_exponent or 0)
    unit *= Fraction(kind.eps or 1)
    return round(Fraction(value) / unit) * unit


def close(found: float, wanted: float, *, scale: float = 0.0) -> bool:
    if math.isnan(wanted) or math.isinf(wanted) or abs(wanted) > HUGE:
        return math.isnan(found) if math.isnan(wanted) else found > HUGE
    return math.isclose(found, wanted, rel_tol=1e-9, abs_tol=max(scale, 1 / HUGE))


def check(a: tuple[Array, str], b: tuple[Array, str], found: Measure) -> None:
    exact = Exact(a, b)
    eps = max(DTYPES[name].eps or math.nan for _, name in (a, b))
    assert found.eps == eps
    assert found.measured == "values"
    assert found.numel == a[0].size
    assert found.nonfinite == exact.nonfinite
    assert found.zeros == exact.zeros
    assert found.share_differing == (exact.bits / a[0].size if a[0].size else 0)
    if exact.spread > FAR:
        return
    assert close(found.norm, exact.norm)
    assert close(found.error_eps * eps, exact.ratio())
    assert close(found.cosine_distance, exact.cosine_distance(), scale=1e-12)
    if not exact.finite:
        assert math.isnan(found.max_abs)
        return
    most = max(map(abs, exact.apart))
    largest = max(abs(x) for x, _ in exact.finite)
    assert close(found.max_abs, as_float(most))
    assert close(
        found.max_eps * eps, as_float(most / largest) if largest else (math.inf if most else 0)
    )
    total = sum(map(abs, exact.apart), Fraction())
    bias = abs(sum(exact.apart, Fraction())) / total if total else Fraction()
    assert close(found.bias, float(bias), scale=1e-9)
    check_worst(a, b, found, most)


def check_worst(a: tuple[Array, str], b: tuple[Array, str], found: Measure, most: Fraction) -> None:
    one, two = oracle.numbers(*a), oracle.numbers(*b)
    if found.worst < 0:
        assert not most or float(most) < 1 / HUGE
        return
    parts = 2 if a[1] in PART else 1
    cells = range(found.worst * parts, (found.worst + 1) * parts)
    shown = (found.value_a, found.value_b)
    assert any(same((one[i], two[i]), shown) for i in cells)
    if most and all(map(math.isfinite, shown)):
        assert close(abs(found.value_b - found.value_a), found.max_abs)


def same(one: tuple[float, float], two: tuple[float, float]) -> bool:
    return all(x == y or (math.isnan(x) and math.isnan(y)) for x, y in zip(one, two, strict=True))


def as_float(value: Fraction) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf


@pytest.mark.slow
@given(pairs())
def test_a_measure_says_what_exact_arithmetic_says(pair: tuple[Any, Any]) -> None:
    check(*pair, measured(*pair))


@pytest.mark.slow
@given(pairs(other=True))
@example(((np.array(1.4e-45, "<f4"), "float32"), (np.array(5.4266571e-166), "float64")))
def test_two_dtypes_are_measured_by_their_values_in_eps_of_the_coarser(
    pair: tuple[Any, Any],
) -> None:
    check(*pair, measured(*pair))


@pytest.mark.slow
@settings(max_examples=examples(50))
@given(st.lists(pairs(st.sampled_from(["float32", "bfloat16", "complex64"])), max_size=6))
def test_reading_in_blocks_equals_reading_whole_and_one_by_one(many: list[Any]) -> None:
    a, b = [one for one, _ in many], [two for _, two in many]
    with patch.multiple(values, BLOCK=3, READ=4), patch.object(measurement, "BLOCK", 3):
        found = measured_all(a, b)
    assert len(found) == len(many)
    for one, two, measure_of in zip(a, b, found, strict=True):
        check(one, two, measure_of)


@settings(max_examples=examples(30))
@given(pairs(dtype_names("int", "bool")))
def test_integers_are_counted_not_measured(pair: tuple[Any, Any]) -> None:
    (one, _), (two, _) = pair
    found = measured(*pair)
    assert all(map(math.isnan, (found.eps, found.error_eps, found.max_eps)))
    assert found.share_differing == (np.mean(one != two) if one.size else 0)


def test_what_is_infinite_or_nan_in_one_run_only_is_counted_and_shown() -> None:
    one = floats(math.nan, math.inf, 1, 2, math.nan, math.inf)
    two = floats(math.nan, math.inf, 1, 2, 0, -math.inf)
    found = measured((one, "float32"), (two, "float32"))
    assert (found.nonfinite, found.error_eps, found.worst) == (2, 0.0, 4)
    assert math.isnan(found.value_a)
    assert found.value_b == 0


@pytest.mark.parametrize("fill", [-1e9, -1e30, float(np.finfo(np.float32).min)])
def test_what_a_mask_filled_in_both_runs_hides_no_error(fill: float) -> None:
    masked = measured(
        (floats(3, 4, fill), "float32"),
        (floats(3, 5, fill), "float32"),
    )
    assert masked.norm == 5.0
    assert math.isclose(masked.error_eps * masked.eps, 0.2)
    alone = measured((floats(3, 4, fill), "float32"), (floats(3, 4, 1), "float32"))
    assert math.isclose(alone.norm, -fill, rel_tol=1e-6)


def test_shapes_that_differ_are_not_measured() -> None:
    found = measured((floats(3, 4), "float32"), (floats(3, 4, 5), "float32"))
    assert (found.measured, found.numel, found.norm) == ("shape", 2, 5.0)
    assert math.isnan(found.error_eps)
    assert math.isnan(found.share_differing)


@pytest.mark.slow
@example((_doubles(5e-324, -5e-324), _doubles(5e-324, 5e-324)))
@example((_doubles(5e-324, 5e-324), _doubles(1e-300, 0.0)))
@given(pairs(dtype_names("float")))
def test_without_values_the_figures_give_bounds_that_hold(pair: tuple[Any, Any]) -> None:
    bound, exact = measured(*pair, kept=False), measured(*pair)
    assert (bound.measured, bound.numel, bound.eps) == ("summary", exact.numel, exact.eps)
    assert math.isnan(bound.share_differing)
    assert bound.worst == -1
    assert bound.nonfinite <= exact.nonfinite
    assert bound.zeros <= exact.zeros
    if Exact(*pair).spread > FAR:
        return
    for name in ("error_eps", "max_abs", "max_eps"):
        least, most = getattr(bound, name), getattr(exact, name)
        assert math.isnan(least) or least <= most * (1 + 1e-9)


def test_bounds_see_a_change_of_size_and_a_shift() -> None:
    one = np.linspace(-1, 1, 1000).astype("<f4")
    for two in (one * np.float32(1.25), one + np.float32(0.25)):
        bound = measured((one, "float32"), (two, "float32"), kept=False)
        exact = measured((one, "float32"), (two, "float32"))
        assert bound.error_eps == pytest.approx(exact.error_eps, rel=1e-3)


def test_progress_ends_where_all_is_read() -> None:
    sides = [table([made(n, floats(*range(n, 9)), "float32") for n in range(3)]) for _ in "ab"]
    told: list[tuple[int, int]] = []
    measure(align(*sides), np.arange(3), progress=lambda *now: told.append(now))
    assert told[-1] == (2 * 4 * (9 + 8 + 7),) * 2
    assert told == sorted(told)


def test_of_no_pairs_there_are_no_measures() -> None:
    for side in (table([]), table([made(0, floats(1), "float32")])):
        assert len(measure(align(side, side), np.empty(0, np.int64))) == 0


@pytest.mark.slow
@given(pairs(), pairs(other=True), st.booleans())
def test_ulps_are_the_numbers_between(one: Any, other: Any, mixed: bool) -> None:
    a, b = other if mixed else one
    with patch.multiple(values, BLOCK=3, READ=4):
        alignment = align(table([made(0, *a)]), table([made(0, *b)]))
        found = max_ulp(alignment, 0)
    if not mixed:
        assert found == between(a, b)
    assert found is None or found >= 0


def between(a: tuple[Array, str], b: tuple[Array, str]) -> int | None:
    """The most steps from a number to the next that lie between two elements."""
    name = PART.get(a[1], a[1])
    width = 8 * DTYPES[name].storage.itemsize
    found = []
    values = zip(oracle.numbers(*a), oracle.numbers(*b), strict=True)
    cells = zip(*(cells_of(raw, width) for raw, _ in (a, b)), strict=True)
    for numbers, patterns in zip(values, cells, strict=True):
        if all(map(math.isfinite, numbers)):
            places = [place(pattern, width, name) for pattern in patterns]
            found.append(abs(places[1] - places[0]))
    return max(found, default=None)


def cells_of(raw: Array, width: int) -> list[int]:
    data, size = raw.tobytes(), width // 8
    return [int.from_bytes(data[i : i + size], "little") for i in range(0, len(data), size)]


def place(pattern: int, width: int, name: str) -> int:
    sign = 1 << (width - 1)
    if name == "float8_e8m0fnu" or pattern < sign:
        return pattern
    return sign - pattern


@pytest.mark.parametrize(
    ("fine", "coarse", "dtype", "ulps"),
    [
        ("float32", 0x3F80, "bfloat16", 0),  # 1.0
        ("float32", 0x3F82, "bfloat16", 2),
        ("float64", 0x3C00, "float16", 0),
        ("float64", 0x38, "float8_e4m3fn", 0),
        ("float64", 0xB8, "float8_e4m3fn", 0x70),
    ],
)
def test_the_finer_value_is_rounded_to_the_coarser_dtype(
    fine: str, coarse: int, dtype: str, ulps: int
) -> None:
    one = np.array([1 + 1e-6], DTYPES[fine].storage)
    two = np.array([coarse], f"u{DTYPES[dtype].storage.itemsize}").view(DTYPES[dtype].storage)
    assert max_ulp(align(table([made(0, one, fine)]), table([made(0, two, dtype)])), 0) == ulps


def test_where_nothing_can_be_counted_there_are_no_ulps() -> None:
    one, whole = floats(1, 2), np.array([1, 2])
    other = floats(1, 2, 3)
    for a, b, kept in (
        ((one, "float32"), (one, "float32"), False),
        ((one, "float32"), (other, "float32"), True),
        ((whole, "int64"), (whole, "int64"), True),
        ((floats(math.nan), "float32"), (floats(1), "float32"), True),
    ):
        alignment = align(*(table([made(0, *side, kept=kept)]) for side in (a, b)))
        assert max_ulp(alignment, 0) is None
