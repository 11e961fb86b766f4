"""`anchor hist`: which tensors, which figures, in which form."""

from __future__ import annotations

import csv
import io
import json

import numpy as np
import pytest

import anchorlib
from anchor_cli.histograms.bars import bar, drawn, percent, strip
from anchor_cli.histograms.format_limits import limits_of, limits_within
from anchor_cli.terminal import Screen
from anchorlib.record import Flag, Gap
from anchorlib.summary import Log2Histogram, shares_as
from tests.cli.made import BIAS, anchor, make_run, record

NAN, INF = np.float32(np.nan), np.float32(np.inf)
GOLDEN = """\
run1  fc2.bias@grad
steps 0-1, 2 records, 8 elements, 25.0 % zero

    2^1       2   25.0 %  #####################################################
    2^0       0
   2^-1       2   25.0 %  #####################################################
   2^-2       2   25.0 %  #####################################################

   zero       2   25.0 %  #####################################################
    NaN       0
    Inf       0
"""


@pytest.fixture
def store(tmp_path):
    make_run(
        tmp_path,
        [
            *(record(step=step) for step in range(2)),
            *(record(kind="pass_grad", raw=BIAS * 2, step=step) for step in range(2)),
            record("fc2.weight", "pass_grad", np.array([[NAN, INF], [-INF, 1e-40]], np.float32)),
            record("loss", "value", np.float32(2).reshape(())),
        ],
    )
    return tmp_path


def test_a_pipe_gets_this_text(store):
    done = anchor("hist", "run1", "--store", store, "--tensor", "fc2.bias")
    assert (done.code, done.out, done.err) == (0, GOLDEN, "")


def test_json_has_exactly_these_fields(store):
    done = anchor("hist", "run1", "--store", store, "--tensor", "fc2.bias", "--json")
    assert done.json == {
        "run": "run1",
        "tensor": "fc2.bias",
        "kind": "grad",
        "first_step": 0,
        "last_step": 1,
        "numel": 8,
        "count": 6,
        "zero": 2,
        "nan": 0,
        "inf": 0,
        "subnormal": 0,
        "bins": {"-2": 2, "-1": 2, "1": 2},
    }


@pytest.mark.parametrize(
    ("selector", "kind"),
    [
        ("fc2.bias", "grad"),
        ("fc2.bias@pass_grad", "pass_grad"),
        ("Gradient___fc2.bias", "pass_grad"),
        ("fc2.weight", "pass_grad"),
        ("loss", "value"),
    ],
)
def test_the_kind_defaults_to_the_gradient(store, selector, kind):
    done = anchor("hist", "run1", "--store", store, "--tensor", selector, "--json")
    assert done.json["kind"] == kind


def test_several_tensors_are_pooled_and_told_apart(store):
    done = anchor("hist", "run1", "--store", store, "-t", "fc2.*", "--json").json
    assert (done["tensor"], done["kind"]) == ("fc2.*", None)
    assert [(part["tensor"], part["kind"]) for part in done["parts"]] == [
        ("fc2.bias", "grad"),
        ("fc2.weight", "pass_grad"),
    ]
    for figure in ("numel", "count", "zero", "nan", "inf", "subnormal"):
        assert done[figure] == sum(part[figure] for part in done["parts"])
    assert done["parts"][1] | {"run": None} == {
        "run": None,
        "tensor": "fc2.weight",
        "kind": "pass_grad",
        "first_step": 0,
        "last_step": 0,
        "numel": 4,
        "count": 1,
        "zero": 0,
        "nan": 1,
        "inf": 2,
        "subnormal": 1,
        "bins": {"-133": 1},
    }


def test_selectors_may_be_repeated(store):
    done = anchor("hist", "run1", "--store", store, "-t", "fc2.bias", "-t", "loss", "--json").json
    assert done["tensor"] == "fc2.bias, loss"
    assert [part["tensor"] for part in done["parts"]] == ["fc2.bias", "loss"]


def test_it_says_what_the_library_says(store):
    done = anchor("hist", "run1", "--store", store, "-t", "fc2.*", "--json").json
    histogram = anchorlib.open_run("run1", store).histogram("fc2.*")
    assert {int(e): n for e, n in done["bins"].items()} == dict(histogram.bins)


def test_ranks_are_pooled_and_can_be_told_apart(store):
    make_run(store, [record(raw=BIAS * 4)], rank=1)
    both = anchor("hist", "run1", "--store", store, "-t", "fc2.bias", "--json").json
    one = anchor("hist", "run1", "--store", store, "-t", "fc2.bias", "--rank", "1", "--json").json
    assert (both["numel"], one["numel"]) == (12, 4)
    assert one["bins"] == {"0": 1, "1": 1, "3": 1}


@pytest.mark.parametrize(
    ("options", "numel"),
    [
        (["--step", "1"], 4), (["--step", "1:9"], 4), (["--step", ":9"], 8),
        (["--pass", "0"], 8), (["--call", "0", "--phase", "train"], 8), (["--mode", "all"], 8),
    ],
)  # fmt: skip
def test_options_narrow_it(store, options, numel):
    done = anchor("hist", "run1", "--store", store, "-t", "fc2.bias", *options, "--json")
    assert done.json["numel"] == numel


def test_two_modes_of_one_tensor_are_never_pooled(tmp_path):
    make_run(tmp_path, [record(), record(mode="sum")])
    done = anchor("hist", "run1", "--store", tmp_path, "-t", "fc2.bias", "--json")
    assert done.code == 2
    assert "--mode all or --mode sum" in done.err
    done = anchor("hist", "run1", "--store", tmp_path, "-t", "fc2.bias", "--mode", "sum", "--json")
    assert done.json["numel"] == 4


def test_summaries_are_enough(tmp_path):
    make_run(tmp_path, [record(raw=None, dropped=BIAS, mode="summary")])
    done = anchor("hist", "run1", "--store", tmp_path, "-t", "fc2.bias", "--json")
    assert (done.code, done.json["count"]) == (0, 3)


class TestLossScales:
    """Gradients that still carry the loss scale cannot be compared across scales."""

    def ask(self, tmp_path, *options):
        amp = {"kind": "pass_grad", "flags": Flag.SCALED}
        records = [record(step=n, scale=65536.0 / 2**n, **amp) for n in range(3)]
        make_run(tmp_path, [*records, *(record("b", step=n, **amp) for n in range(3))])
        return anchor("hist", "run1", "--store", tmp_path, *options)

    def test_different_ones_are_told_in_one_line(self, tmp_path):
        done = self.ask(tmp_path, "-t", "fc2.bias", "--json")
        assert (done.code, done.json["numel"]) == (0, 12)
        said = "anchor: loss scales from 16384 to 65536 are counted together in fc2.bias@pass_grad,"
        assert done.err.startswith(said)
        assert done.err.count("\n") == 1

    def test_one_is_not_worth_a_word(self, tmp_path):
        assert self.ask(tmp_path, "-t", "fc2.bias", "--step", "1").err == ""
        assert anchor("hist", "run1", "--store", tmp_path, "-t", "b").err == ""

    def test_of_pooled_tensors_those_are_named_that_carry_several(self, tmp_path):
        done = self.ask(tmp_path, "-t", "*")
        assert "from 16384 to 65536 are counted together in fc2.bias@pass_grad, so" in done.err
        done = anchor("hist", "run1", "--store", tmp_path, "-t", "*", "--step", "0")
        assert "from 1 to 65536 are counted together in what was pooled, so" in done.err


class TestAs:
    """--as: what a narrower format would do."""

    VALUES = np.array([2.0**-26, 2.0**-20, 1.0, 70000.0], np.float32)

    def ask(self, tmp_path, *options):
        make_run(tmp_path, [record(raw=self.VALUES)])
        return anchor("hist", "run1", "--store", tmp_path, "-t", "fc2.bias", "--as", *options)

    def test_shares_are_of_the_values(self, tmp_path):
        done = self.ask(tmp_path, "fp16", "--json").json
        assert (done["as"], done["scale"], done["shares_exact"]) == ("fp16", 1.0, True)
        assert (done["underflow"], done["subnormal_as"], done["overflow"]) == (0.25, 0.25, 0.25)

    def test_a_scale_moves_them(self, tmp_path):
        done = self.ask(tmp_path, "fp16", "--scale", "1024", "--json").json
        assert (done["underflow"], done["subnormal_as"], done["overflow"]) == (0.0, 0.25, 0.25)

    def test_text_says_it_in_a_sentence(self, tmp_path):
        assert (
            "as fp16, times 2: 25.0 % underflow to zero, 25.0 % subnormal, 25.0 % overflow\n"
        ) in self.ask(tmp_path, "fp16", "--scale", "2").out

    def test_shares_without_values_say_that_they_are_estimates(self, tmp_path):
        in_a_cut_bin = np.append(self.VALUES, np.float32(1.5 * 2.0**-25))
        make_run(tmp_path, [record(raw=None, dropped=in_a_cut_bin, mode="summary")])
        where = ("hist", "run1", "--store", tmp_path, "-t", "fc2.bias", "--as", "fp16")
        assert anchor(*where, "--json").json["shares_exact"] is False
        assert "estimated" in anchor(*where).out

    def test_parts_carry_their_own(self, tmp_path):
        make_run(tmp_path, [record(raw=self.VALUES), record("b", raw=self.VALUES[2:3])])
        where = ("hist", "run1", "--store", tmp_path, "-t", "*", "--as", "fp16", "--json")
        done = anchor(*where).json
        assert [part["overflow"] for part in done["parts"]] == [0.25, 0.0]
        assert done["overflow"] == 0.2


class TestGaps:
    """Incomplete data: the figures come, a line says what is missing, the exit code is 3."""

    def gap(self, **fields):
        where = {"count": 2, "first_step": 4, "last_step": 5, "reason": "line full", **fields}
        return Gap("fc2.bias", "grad", "all", **where)

    def test_records_that_are_missing_are_told(self, tmp_path):
        make_run(tmp_path, [record()], gaps=[self.gap()])
        done = anchor("hist", "run1", "--store", tmp_path, "-t", "fc2.bias", "--json")
        assert (done.code, done.json["numel"]) == (3, 4)
        assert done.err == (
            "anchor: incomplete: fc2.bias@grad lacks 2 records of steps 4-5 (line full)\n"
        )

    def test_gaps_elsewhere_do_not_matter(self, tmp_path):
        other = Gap("fc1.bias", "grad", "all", "line full", 1, 0, 0)
        make_run(tmp_path, [record(), record("fc1.bias")], gaps=[self.gap(), other])
        where = ("hist", "run1", "--store", tmp_path, "-t")
        assert anchor(*where, "fc2.bias", "--step", "0:4").code == 0
        assert anchor(*where, "fc1.bias", "--step", "1:").code == 2
        assert anchor(*where, "fc1.bias").code == 3

    def test_a_tensor_that_was_lost_altogether_is_told_beside_the_others(self, tmp_path):
        other = Gap("fc3.bias", "grad", "", "line full", 7, 0, 6)
        make_run(tmp_path, [record(), record(kind="value")], gaps=[other])
        where = ("hist", "run1", "--store", tmp_path, "-t")
        assert anchor(*where, "fc2.bias").code == 0
        done = anchor(*where, "fc*", "--json")
        assert (done.code, done.json["tensor"]) == (3, "fc2.bias")
        said = "fc3.bias@grad has no record: lost at steps 0-6 (line full)"
        assert done.err == f"anchor: incomplete: {said}\n"
        alone = anchor(*where, "fc3.bias")
        assert (alone.code, alone.err) == (2, f"anchor: {said}\n")

    def test_what_was_lost_of_unknown_tensors_may_be_missing_anywhere(self, tmp_path):
        gap = Gap("*", "value", "all", "damaged on the trainer's disk", 3, 0, 6)
        make_run(tmp_path, [record(), record(step=9)], gaps=[gap])
        where = ("--store", tmp_path, "-t", "fc2.bias")
        for command in ("hist", "stats"):
            done = anchor(command, "run1", *where)
            assert done.code == 3
            assert "3 records of unknown tensors are lost at" in done.err
            assert anchor(command, "run1", *where, "--step", "9:").code == 0

    def test_values_left_out_are_no_gap_where_summaries_are_kept(self, tmp_path):
        records = [record(), record(raw=None, dropped=BIAS, step=4)]
        gap = self.gap(count=1, last_step=4, reason="line full: values dropped")
        make_run(tmp_path, records, gaps=[gap])
        done = anchor("hist", "run1", "--store", tmp_path, "-t", "fc2.bias", "--json")
        assert (done.code, done.json["numel"], done.err) == (0, 8, "")


class TestFiles:
    """-o: the suffix says what; nothing is left half written."""

    def test_json_is_the_same_document(self, store, tmp_path):
        where = ("hist", "run1", "--store", store, "-t", "fc2.*")
        assert anchor(*where, "-o", tmp_path / "h.json").out == ""
        written = json.loads((tmp_path / "h.json").read_text())
        assert written == anchor(*where, "--json").json

    def test_csv_has_a_row_for_each_bin_of_each_tensor(self, store, tmp_path):
        anchor("hist", "run1", "--store", store, "-t", "fc2.*", "-o", tmp_path / "h.csv")
        rows = list(csv.reader(io.StringIO((tmp_path / "h.csv").read_text())))
        assert rows[0] == ["tensor", "kind", "bin", "count"]
        assert ["fc2.bias", "grad", "-2", "2"] in rows
        assert ["fc2.bias", "grad", "zero", "2"] in rows
        assert ["fc2.weight", "pass_grad", "inf", "2"] in rows

    def test_a_file_and_json_on_stdout_go_together(self, store, tmp_path):
        where = ("hist", "run1", "--store", store, "-t", "fc2.bias")
        done = anchor(*where, "-o", tmp_path / "h.csv", "--json")
        assert done.json["numel"] == 8
        assert (tmp_path / "h.csv").exists()

    def test_a_place_that_cannot_be_written_is_one_line(self, store, tmp_path):
        place = tmp_path / "nowhere" / "h.csv"
        done = anchor("hist", "run1", "--store", store, "-t", "fc2.bias", "-o", place)
        assert done.code == 2
        reason = f"there is no folder {place.parent}; make it, or write elsewhere"
        assert done.err == f"anchor: cannot write {place}: {reason}\n"

    def test_a_failure_leaves_the_old_file_and_no_other(self, store, tmp_path, monkeypatch):
        from anchor_cli.histograms import histogram_report

        def fail(_, file):
            file.write(b"half")
            raise OSError(28, "No space left on device")

        (tmp_path / "out").mkdir()
        place = tmp_path / "out" / "h.csv"
        place.write_text("old")
        monkeypatch.setitem(histogram_report.WRITERS, ".csv", fail)
        done = anchor("hist", "run1", "--store", store, "-t", "fc2.bias", "-o", place)
        assert done.code == 2
        assert "No space left on device" in done.err
        assert place.read_text() == "old"
        assert list(place.parent.iterdir()) == [place]


class TestWords:
    """One is not several."""

    def test_one_step_and_one_record_are_told_as_one(self, store):
        done = anchor("hist", "run1", "--store", store, "-t", "fc2.weight")
        assert done.out.splitlines()[1] == "step 0, 1 record, 4 elements, 0 % zero"
        done = anchor("hist", "run1", "--store", store, "-t", "loss", "--json", "--step", "7")
        assert "its records are of step 0\n" in done.err

    def test_a_picture_of_one_step_says_so(self, store, tmp_path):
        place = tmp_path / "h.html"
        anchor("hist", "run1", "--store", store, "-t", "loss", "-o", place)
        assert "<h1>run1, step 0: elements in each power of two</h1>" in place.read_text()

    def test_the_largest_e4m3_is_448(self, tmp_path):
        make_run(tmp_path, [record(raw=np.float32([600, 300, 1]))])
        where = ("hist", "run1", "--store", tmp_path, "-t", "fc2.bias", "--as", "e4m3")
        assert "--- e4m3 largest 448 ---" in anchor(*where).out


class TestBars:
    """The drawing itself."""

    def test_zeros_do_not_flatten_the_rest(self):
        lines = list(drawn(Log2Histogram({0: 10, 1: 5}, zero=10_000), [], Screen(60)))
        assert lines[1].count("#") > 2 * lines[0].count("#") - 2
        assert lines[-3].endswith(">")

    def test_a_single_element_among_many_is_seen(self):
        lines = list(drawn(Log2Histogram({0: 10**6, -1: 1}), [], Screen(80, glyphs=True)))
        assert lines[1].endswith("▏")
        assert "<0.1 %" in lines[1]

    @pytest.mark.parametrize(
        "histogram", [Log2Histogram(), Log2Histogram(zero=3), Log2Histogram(nan=2)]
    )
    def test_there_may_be_nothing_to_bin(self, histogram):
        lines = list(drawn(histogram, ["fp16"], Screen()))
        assert [line.split()[0] for line in lines] == ["zero", "NaN", "Inf"]

    def test_a_limit_stands_below_the_bin_that_begins_there(self):
        bins = dict.fromkeys(range(-26, -12), 1)
        lines = list(drawn(Log2Histogram(bins), ["fp16"], Screen()))
        labels = [line[:8].strip() for line in lines]
        normal = next(i for i, line in enumerate(lines) if "smallest normal 2^-14" in line)
        subnormal = next(i for i, line in enumerate(lines) if "smallest subnormal 2^-24" in line)
        assert (labels[normal - 1], labels[normal + 1]) == ("2^-14", "2^-15")
        assert (labels[subnormal - 1], labels[subnormal + 1]) == ("2^-24", "2^-25")

    def test_hundreds_of_exponents_share_rows_and_nothing_is_lost(self):
        bins = dict.fromkeys(range(-149, 128), 3)
        lines = list(drawn(Log2Histogram(bins), [], Screen()))
        axis = lines[: lines.index("")]
        assert len(axis) <= 64
        assert sum(int(line.split()[1]) for line in axis) == 3 * len(bins)

    def test_a_strip_fits_its_room(self):
        histogram = Log2Histogram({e: e + 60 for e in range(-50, 10)})
        for room in (1, 7, 24, 60, 100):
            assert len(strip(histogram, -50, 9, room, Screen())) <= room
        assert strip(Log2Histogram({0: 1, 2: 8}), 0, 2, 9, Screen()) == ". @"

    @pytest.mark.parametrize(
        ("part", "whole", "shown"),
        [(0, 0, "0 %"), (0, 5, "0 %"), (1, 10**6, "<0.1 %"), (1, 3, "33.3 %"), (5, 5, "100.0 %"),
         (10**6 - 1, 10**6, ">99.9 %")],
    )  # fmt: skip
    def test_a_share_is_never_rounded_to_none_or_all(self, part, whole, shown):
        assert percent(part, whole) == shown

    def test_bars_have_eighths_on_a_terminal(self):
        assert bar(0.5, 1, Screen(80, glyphs=True)) == "▌"
        assert bar(1, 3, Screen(80, glyphs=True)) == "███"
        assert bar(0, 3, Screen(80, glyphs=True)) == ""


class TestLimits:
    """Where formats end."""

    @pytest.mark.parametrize(
        ("fmt", "ends"),
        [("fp16", [65504, -14, -24]), ("bf16", [255 * 2.0**120, -126, -133]),
         ("e4m3", [448, -6, -9]), ("e5m2", [57344, -14, -16])],
    )  # fmt: skip
    def test_they_are_those_of_the_formats(self, fmt, ends):
        largest, *powers = ends
        found = [value for value, _ in limits_of(fmt)]
        assert found == [largest, *(2.0**exponent for exponent in powers)]

    @pytest.mark.parametrize("fmt", ["fp16", "bf16", "e4m3", "e5m2"])
    def test_the_shares_agree_with_the_lines(self, fmt):
        largest, normal, subnormal = (value for value, _ in limits_of(fmt))
        values = np.array([largest, 1.5 * largest, normal, subnormal, normal / 2, subnormal / 4])
        shares = shares_as(values, fmt)
        assert (shares.overflowing, shares.subnormals, shares.underflowing) == (1, 2, 1)

    def test_formats_that_agree_share_a_line(self):
        found = limits_within(["fp16", "e5m2"], -20, 0)
        assert [one.label("2^{}".format) for one in found] == [
            "fp16, e5m2 smallest normal 2^-14",
            "e5m2 smallest subnormal 2^-16",
        ]

    def test_a_scale_moves_them_down(self):
        (found,) = limits_within(["fp16"], -30, -23, scale=1024)
        label = "fp16 smallest normal 2^-14 / 1024"
        assert (found.at, found.label("2^{}".format)) == (-24, label)

    def test_the_largest_is_told_by_its_value(self):
        found = limits_within(["fp16", "bf16", "e4m3", "e5m2"], 0, 200)
        assert [one.label(str) for one in found] == [
            "bf16 largest 3.38953e+38",
            "fp16 largest 65504",
            "e5m2 largest 57344",
            "e4m3 largest 448",
        ]
        assert found[-1].at == pytest.approx(8.807, abs=1e-3)


def test_as_suggests_the_scales_that_lose_least(tmp_path):
    make_run(tmp_path, [record(raw=np.array([2.0**-30, 3 * 2.0**-11, 0], np.float32))])
    asked = ("hist", "run1", "--store", tmp_path, "--tensor", "fc2.bias", "--as", "fp16")
    done = anchor(*asked)
    line = "suggested scales 2^6 to 2^24: no overflow, least underflow (0 %)"
    assert line in done.out.splitlines()
    told = anchor(*asked, "--json").json
    assert told["suggested_scale"] == {"low": 64.0, "high": 2.0**24, "underflow": 0.0}
    assert told["underflow"] == 0.5
    for scale in ("64", "16777216"):
        shares = anchor(*asked, "--scale", scale, "--json").json
        assert (shares["underflow"], shares["overflow"]) == (0, 0)
    make_run(tmp_path, [record(raw=np.zeros(2, np.float32))], "zeros")
    nothing = anchor("hist", "zeros", "--store", tmp_path, "-t", "fc2.bias", "--as", "fp16")
    assert "suggested" not in nothing.out


def test_a_suggestion_for_gradients_that_are_scaled_already_says_so(tmp_path):
    make_run(tmp_path, [record(flags=Flag.SCALED, scale=1024.0)])
    asked = ("hist", "run1", "--store", tmp_path, "--tensor", "fc2.bias")
    told = "the counted values carry a loss scale of 1024 already: multiply it by a suggested scale"
    assert told in anchor(*asked, "--as", "fp16").err
    assert anchor(*asked).err == ""


def test_infinities_are_overflow_that_no_scale_takes_away(tmp_path):
    raw = np.array([np.inf, 1, 2, 4, 8, 0, np.nan], np.float32)
    make_run(tmp_path, [record(raw=raw)])
    asked = ("hist", "run1", "--store", tmp_path, "--tensor", "fc2.bias", "--as", "fp16")
    done = anchor(*asked)
    assert "as fp16: 0 % underflow to zero, 0 % subnormal, 20.0 % overflow" in done.out
    assert "no further overflow (1 element is infinite at any scale)" in done.out
    assert "no overflow" not in done.out
    for scale in ("1", "0.0001"):
        assert anchor(*asked, "--scale", scale, "--json").json["overflow"] == 0.2
