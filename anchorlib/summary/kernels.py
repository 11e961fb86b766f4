"""The scan of float32 and float64 as machine code; run as a script, this prints an object file.

A process that records never imports numba and never compiles: both hold the interpreter's lock for
up to a quarter of a second at a time. `object_file` runs this file in another process, and links
the object file that it prints, for `compiled` to call.

Every figure equals that of the numpy path, bit for bit. So sums are made in numpy's order (pairwise
summation, `loops_utils.h.src`: eight accumulators for up to 128 elements, halves above), and no
operation may be reordered or contracted.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import llvmlite.binding as llvm
import numba
import numpy as np
from llvmlite import ir
from numba.core import cgutils
from numba.extending import intrinsic

LANES = 8
LEAF = 128


@intrinsic
def rows(_context: Any, values: Any, _start: Any, _stop: Any) -> Any:
    """Return (sum, sum of squares) of values[start:stop], eight elements or a multiple of eight.

    The machine code is written here with vector instructions. The compiler would not vectorise a
    loop over eight sums, and such a loop takes six times as long.
    """
    element, index, result = values.dtype, numba.intp, numba.types.UniTuple(numba.float64, 2)

    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        base, start, stop = arguments
        narrow = ir.VectorType(context.get_data_type(element), LANES)
        wide = ir.VectorType(ir.DoubleType(), LANES)

        def row(first: Any) -> Any:
            place = builder.bitcast(builder.gep(base, [first]), narrow.as_pointer())
            loaded = builder.load(place, typ=narrow, align=element.bitwidth // 8)
            return loaded if narrow == wide else builder.fpext(loaded, wide)

        def add(sums: Any, more: Any) -> None:
            builder.store(builder.fadd(builder.load(sums, typ=wide), more), sums)

        one, step = row(start), ir.Constant(start.type, LANES)
        total = cgutils.alloca_once_value(builder, one)
        squares = cgutils.alloca_once_value(builder, builder.fmul(one, one))
        second = builder.add(start, step)
        with cgutils.for_range_slice(builder, second, stop, step, inc=True) as (first, _):
            one = row(first)
            add(total, one)
            add(squares, builder.fmul(one, one))
        both = [_across(builder, builder.load(sums, typ=wide)) for sums in (total, squares)]
        return context.make_tuple(builder, result, both)

    return result(values, index, index), generate


def _across(builder: Any, lanes: Any) -> Any:
    """Emit code that adds eight lanes as numpy does: ((0 + 1) + (2 + 3)) + ((4 + 5) + (6 + 7))."""
    parts = [builder.extract_element(lanes, ir.IntType(32)(lane)) for lane in range(LANES)]
    while len(parts) > 1:
        parts = [builder.fadd(*pair) for pair in zip(parts[::2], parts[1::2], strict=True)]
    return parts[0]


@numba.njit(error_model="numpy")
def pairwise(values: Any, start: int, stop: int) -> tuple[float, float]:
    """Return (sum, sum of squares) of values[start:stop], added in the order of numpy."""
    size = stop - start
    if size > LEAF:
        middle = start + ((size // 2) & -LANES)
        total, squares = pairwise(values, start, middle)
        more, more_squares = pairwise(values, middle, stop)
        return total + more, squares + more_squares
    total = squares = -0.0
    whole = start + (size & -LANES)
    if size >= LANES:
        total, squares = rows(values, start, whole)
    for i in range(whole, stop):
        wide = np.float64(values[i])
        total += wide
        squares += wide * wide
    return total, squares


class Bits(NamedTuple):
    """The bit layout of a float type, as constants whose integer types have the float's width.

    floating, unsigned, signed: numpy's types of that width. mantissa: bits of the mantissa.
    fields: how many values the exponent field has. bias: the exponent field of 1.0.
    magnitude: a mask of all bits but the sign. infinity: the bits of +inf. normal: the bits of the
    smallest positive normal number. largest, smallest: the ends of the signed type.
    """

    floating: Any
    unsigned: Any
    signed: Any
    mantissa: int
    fields: int
    bias: int
    magnitude: Any
    infinity: Any
    normal: Any
    largest: Any
    smallest: Any

    @classmethod
    def of(cls, floating: Any, unsigned: Any, signed: Any, mantissa: int) -> Bits:
        """Make the layout of a float type, from the types of its width and its mantissa's bits."""
        width = 8 * np.dtype(floating).itemsize
        ones = (1 << (width - 1)) - 1
        return cls(
            floating, unsigned, signed, mantissa,
            fields=1 << (width - 1 - mantissa), bias=ones >> mantissa >> 1,
            magnitude=unsigned(ones), infinity=unsigned(ones >> mantissa << mantissa),
            normal=unsigned(1 << mantissa), largest=signed(ones), smallest=signed(-ones - 1),
        )  # fmt: skip


def count_of(bits: Bits) -> Any:
    """Return the numba function count(patterns, start, stop, counts) for a bit layout.

    The function counts the elements by sign and exponent field, spread over four tables that the
    caller has to add up: counts[4][sign and exponent field]. It returns whether any element is
    zero, subnormal or not finite.
    """
    shift, fields, table = bits.unsigned(bits.mantissa), bits.fields, 2 * bits.fields

    @numba.njit(error_model="numpy")
    def outer(counts: Any) -> int:
        count = 0
        for half in range(8):
            count += counts[half * fields] + counts[half * fields + fields - 1]
        return count

    @numba.njit(error_model="numpy")
    def count(patterns: Any, start: int, stop: int, counts: Any) -> bool:
        before: int = outer(counts)
        # In four tables: two additions to one counter in a row would wait for each other.
        whole = start + ((stop - start) & -4)
        for i in range(start, whole, 4):
            counts[patterns[i] >> shift] += 1
            counts[table + (patterns[i + 1] >> shift)] += 1
            counts[2 * table + (patterns[i + 2] >> shift)] += 1
            counts[3 * table + (patterns[i + 3] >> shift)] += 1
        for i in range(whole, stop):
            counts[patterns[i] >> shift] += 1
        return bool(outer(counts) > before)

    return count


def extremes_of(bits: Bits) -> Any:
    """Return the numba function extremes(patterns, start, stop) for a bit layout.

    The function returns (lowest, highest, odd): the lowest and the highest finite element, as
    integers that are ordered as the values are, and whether any element is subnormal or not finite,
    so that the function of `rare_of` is needed.
    """
    unsigned, signed, magnitude, infinity = bits[1], bits[2], bits.magnitude, bits.infinity
    largest, smallest, normal = bits.largest, bits.smallest, bits.normal
    top, one = signed(8 * np.dtype(signed).itemsize - 1), unsigned(1)

    @numba.njit(error_model="numpy")
    def extremes(patterns: Any, start: int, stop: int) -> tuple[int, int, bool]:
        low, high, odd = largest, smallest, False
        for i in range(start, stop):
            pattern = signed(patterns[i])
            ordered = signed(pattern ^ (signed(pattern >> top) & largest))
            absolute = unsigned(patterns[i] & magnitude)
            outside = absolute >= infinity
            low = min(low, largest if outside else ordered)
            high = max(high, smallest if outside else ordered)
            # Zero less one is the largest unsigned number, so that zero does not count here.
            odd |= outside | (unsigned(absolute - one) < unsigned(normal - one))
        return low, high, odd

    return extremes


def rare_of(bits: Bits) -> Any:
    """Return the numba function rare(values, patterns, start, stop, counted, wide) for a layout.

    The function handles blocks with subnormal or non-finite elements. It copies the finite elements
    into `wide`, and returns how many there are. In `counted` it counts subnormals by their top bit,
    and infinities in the last counter.
    """
    unsigned, magnitude, infinity, normal = bits[1], bits.magnitude, bits.infinity, bits.normal
    mantissa = bits.mantissa
    # 0 means that subnormal float64 are copied as they are: their unit is no normal float64.
    unit = 2.0 ** (1 - bits.bias - mantissa) if bits.floating is np.float32 else 0.0

    @numba.njit(error_model="numpy")
    def rare(values: Any, patterns: Any, start: int, stop: int, counted: Any, wide: Any) -> int:
        kept = 0
        for i in range(start, stop):
            absolute = unsigned(patterns[i] & magnitude)
            if absolute >= infinity:
                counted[mantissa] += absolute == infinity
                continue
            wide[kept] = values[i]
            if 0 < absolute < normal:
                top = 0
                while absolute >> unsigned(top + 1):
                    top += 1
                counted[top] += 1
                if unit:  # the copy above is zero in a thread that flushes subnormals
                    value = np.int64(absolute) * unit
                    wide[kept] = value if absolute == patterns[i] else -value
            kept += 1
        return kept

    return rare


def scan_of(bits: Bits) -> Any:
    """Return the C function that scans floats of one layout.

    scan(values, patterns, size, block, safe, counts, counted, ends, sums, wide) scans `size`
    elements, given as floats and as bit patterns, and adds its results to the arrays.

    safe: the largest |exponent| whose squares need no scaling; -1 only counts exponents.
    counts, counted: int64, as in `count_of` and `rare_of`.
    ends: the lowest and highest element, as integers that are ordered as the values are, and 1 if
        a block needs scaling: all results are void then.
    sums: the sums of values and of squares. wide: float64 scratch memory for one block.
    """
    mantissa, bias = bits.mantissa, bits.bias
    count, extremes, rare = count_of(bits), extremes_of(bits), rare_of(bits)

    def scan(  # noqa: PLR0913 - a C function takes numbers and addresses alone
        values: Any, patterns: Any, size: int, block: int, safe: int,
        counts: Any, counted: Any, ends: Any, sums: Any, wide: Any,
    ) -> None:  # fmt: skip
        zero: Any = np.int64(0)
        start = zero
        while start < size:
            stop = min(start + block, size)
            if not count(patterns, start, stop, counts) and safe < 0:
                start = stop
                continue
            low, high, odd = extremes(patterns, start, stop)
            kept = rare(values, patterns, start, stop, counted, wide) if odd else stop - start
            if safe >= 0 and kept:
                ends[0], ends[1] = min(ends[0], low), max(ends[1], high)
                field = max(high, -1 - low) >> mantissa
                if abs(field - bias) > safe and (field or odd):  # a block of zeros needs no scaling
                    ends[2] = 1
                    return
                if odd:
                    total, squares = pairwise(wide, zero, kept)
                else:
                    total, squares = pairwise(values, start, stop)
                sums[0] += total
                sums[1] += squares
            start = stop

    return _c_function(bits, scan, "size size size integers integers integers reals reals")


def pieces_of(bits: Bits) -> Any:
    """Return the C function that scans many small arrays which lie one behind the other.

    pieces(values, patterns, bounds, number, counts, ends, sums) scans `number` arrays, given as
    floats and as bit patterns; array i lies from bounds[i] to bounds[i + 1].

    counts: [array][exponent field], zeros at first: how many elements have that exponent field.
    ends: for each array the lowest and highest element, as integers that are ordered as the values
        are, and 1 if it has subnormal or non-finite elements; its sums are wrong then.
    sums: for each array the sums of values and of squares.
    """
    shift, fields, last = bits.unsigned(bits.mantissa), bits.fields, bits.unsigned(bits.fields - 1)
    extremes = extremes_of(bits)

    def pieces(  # noqa: PLR0913 - as above
        values: Any, patterns: Any, bounds: Any, number: int, counts: Any, ends: Any, sums: Any
    ) -> None:
        for piece in range(number):
            start, stop = bounds[piece], bounds[piece + 1]
            for i in range(start, stop):
                counts[piece * fields + ((patterns[i] >> shift) & last)] += 1
            low, high, odd = extremes(patterns, start, stop)
            ends[3 * piece], ends[3 * piece + 1], ends[3 * piece + 2] = low, high, odd
            sums[2 * piece], sums[2 * piece + 1] = pairwise(values, start, stop)

    return _c_function(bits, pieces, "integers size integers integers reals")


def _c_function(bits: Bits, function: Any, more: str) -> Any:
    """Return `function`, compiled so that C can call it.

    Its first two arguments are the values and their bit patterns. more: the types of the others, as
    words: "size" (int64), "integers" (an array of int64) or "reals" (an array of float64).
    """
    numbers, patterns = (numba.from_dtype(np.dtype(kind)) for kind in bits[:2])
    size, array = numba.int64, numba.types.CPointer
    types = {"size": size, "integers": array(size), "reals": array(numba.float64)}
    arguments = [array(numbers), array(patterns), *map(types.__getitem__, more.split())]
    return numba.cfunc(numba.void(*arguments), error_model="numpy")(function)


def machine_code(functions: dict[str, Any]) -> bytes:
    """Make an object file for this processor that has each function under its name.

    The functions have numba's own calling convention: addresses for a result and an exception come
    before the arguments, and a status is returned. Raises ValueError if a function calls another
    library, which would not be linked to the file.
    """
    module = llvm.parse_assembly("")
    for name, function in functions.items():
        part = llvm.parse_assembly(function.inspect_llvm())
        # The wrapper is for callers from C; it calls the interpreter to print an exception.
        part.get_function(function.native_name).linkage = "internal"
        part.get_function(function.native_name.removeprefix("cfunc.")).name = name
        module.link_in(part)
    machine = llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(),
        features=llvm.get_host_cpu_features().flatten(),
        opt=3,
        codemodel="jitdefault",
        jit=True,
    )
    passes = llvm.create_new_module_pass_manager()
    passes.add_global_dead_code_eliminate_pass()
    passes.run(module, llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options()))
    symbols = [*module.functions, *module.global_variables]
    foreign = [one.name for one in symbols if one.is_declaration]
    if foreign := [name for name in foreign if not name.startswith("llvm.")]:
        raise ValueError(f"it needs {', '.join(foreign)}")
    return bytes(machine.emit_object(module))


def main() -> None:
    """Compile, compare the results with numpy's, and print the object file.

    This runs at low priority, unless the command line has the word `awaited`.
    """
    if hasattr(os, "nice") and "awaited" not in sys.argv:
        os.nice(10)
    single = Bits.of(np.float32, np.uint32, np.int32, 23)
    double = Bits.of(np.float64, np.uint64, np.int64, 52)
    code = machine_code(
        {"single": scan_of(single), "double": scan_of(double), "pieces": pieces_of(single)}
    )
    # A file that LLVM cannot link, or an unknown instruction, ends this process, not the recording.
    sys.path.append(str(Path(__file__).resolve().parents[2]))
    import_module("anchorlib.summary.compiled").compared(code)
    sys.stdout.buffer.write(import_module("anchorlib.summary.object_file").sealed(code))


if __name__ == "__main__":
    main()
