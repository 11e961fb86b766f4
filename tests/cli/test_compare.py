"""`anchor compare`: what it says, writes, and exits with; what it finds is tested in diagnosis."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from dataclasses import replace

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import anchorlib.diagnosis
from anchor_cli.comparisons.growth_table import spread
from anchor_cli.comparisons.suggested_commands import next_commands
from anchor_cli.comparisons.terminal_report import report
from anchor_cli.terminal import Screen
from anchor_cli.terminal.table import width_of
from anchorlib.diagnosis import Divergence, Growth, Nearness, Origin, RecordPlace
from anchorlib.diagnosis.judgement.clauses import ValueClause
from anchorlib.diagnosis.judgement.completeness import Completeness
from anchorlib.operations import OpAlignment, OpDifference
from tests.cli.comparisons import IDENTICAL, MEASURE, ORIGIN, PLACE, SUSPECT, UNEXPECTED, pair
from tests.cli.made import BIAS, HOSTILE, anchor, make_run, record
from tests.seeds import examples

PLAIN = Screen()
COORDINATES = {
    **{key: {"type": "integer"} for key in ("step", "pass_index", "call", "rank")},
    **{key: {"type": "string"} for key in ("phase", "name", "kind")},
}
FIGURE = {"type": ["number", "null"]}


def closed(properties):
    """An object with at least these, as the contract says: adding is free."""
    return {"type": "object", "properties": properties, "required": list(properties)}


def several(items):
    return {"type": "array", "items": items}


CLASSES = [
    *("rounding", "not_rounding", "starts_unequal", "window_start", "nonfinite"),
    "nondeterministic",
]
SCHEMA = closed(
    {
        "schema_version": {"const": 1},
        "a": {"type": "string"},
        "b": {"type": "string"},
        "verdict": {"enum": ["identical", "expected", "unexpected", "suspect", "incomparable"]},
        "counts": closed(
            {
                key: {"type": "integer"}
                for key in ("matched", "identical", "differing", "only_a", "only_b")
            }
        ),
        "first": {
            "anyOf": [
                {"type": "null"},
                closed(
                    {
                        **COORDINATES,
                        "order": {"type": "integer"},
                        "identical_before": {"type": "integer"},
                    }
                ),
            ]
        },
        "origins": several(
            closed(
                {
                    **COORDINATES,
                    "class": {"enum": CLASSES},
                    "ops": several({"type": "string"}),
                    "parents": several({"type": "string"}),
                    **dict.fromkeys(("error_eps", "share_differing", "max_abs"), FIGURE),
                    "max_ulp": {"type": ["integer", "null"]},
                }
            )
        ),
        "config_diff": {
            "type": "object",
            "additionalProperties": {"type": "array", "minItems": 2, "maxItems": 2},
        },
        "growth": several(
            closed(
                {
                    "step": {"type": "integer"},
                    "kind": {"type": "string"},
                    "differing": {"type": "integer"},
                    "matched": {"type": "integer"},
                    "median_error_eps": FIGURE,
                    "score": FIGURE,
                }
            )
        ),
    }
)
"""The contract's text, as a schema."""


@pytest.fixture
def compare(monkeypatch):
    """Calls `anchor compare` with what the library is to find; keeps what it was asked."""
    asked = {}

    def call(found, *arguments):
        def answer(a, b, **options):
            asked.update(options, a=a, b=b)
            return found

        monkeypatch.setattr(anchorlib.diagnosis, "compare", answer, raising=False)
        return anchor("compare", "eager", "compiled", *arguments)

    call.asked = asked
    return call


@pytest.mark.parametrize("found", [IDENTICAL, SUSPECT, UNEXPECTED], ids=lambda one: one.verdict)
def test_json_is_as_the_contracts_text_says(compare, found):
    said = compare(found, "--json").json
    jsonschema.validate(said, SCHEMA)
    assert said == json.loads(json.dumps(found.to_dict()))


@pytest.mark.slow
def test_the_schema_refuses_what_the_contract_does_not_know():
    said = UNEXPECTED.to_dict()
    for broken in (
        {**said, "verdict": "fine"},
        {**said, "origins": [{**said["origins"][0], "class": "culprit"}]},
        {key: value for key, value in said.items() if key != "growth"},
    ):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(broken, SCHEMA)


def test_what_is_not_finite_is_null(compare):
    origins = compare(UNEXPECTED, "--json").json["origins"]
    assert [one["error_eps"] for one in origins] == [None, 0.35]


@pytest.mark.parametrize(
    ("verdict", "fail_on", "incomplete", "code"),
    [
        ("identical", "suspect", False, 0),
        ("expected", "suspect", False, 0),
        ("suspect", "suspect", False, 1),
        ("suspect", "unexpected", False, 0),
        ("unexpected", "suspect", False, 1),
        ("unexpected", "unexpected", False, 1),
        ("incomparable", "unexpected", False, 2),
        ("identical", "suspect", True, 3),
        ("expected", "suspect", True, 3),
        ("suspect", "unexpected", True, 3),
        # A difference that was found is no less one because others may be missing.
        ("unexpected", "suspect", True, 1),
        ("suspect", "suspect", True, 1),
    ],
)
def test_exit_codes_are_the_contracts(compare, verdict, fail_on, incomplete, code):
    found = replace(SUSPECT, verdict=verdict, incomplete=incomplete, notes=("3 are missing",))
    done = compare(found, "--fail-on", fail_on, "--json")
    assert done.code == code
    assert done.json["verdict"] == verdict
    assert done.err.count("\n") == (code in (2, 3))


@pytest.mark.parametrize("verdict", ["identical", "expected", "suspect"])
def test_an_incomplete_pair_is_never_exit_0(compare, verdict):
    lacking = Completeness(b=False, why="b ended in the backward of step 0 and never closed")
    found = replace(SUSPECT, verdict=verdict, complete=lacking)
    done = compare(found, "--fail-on", "unexpected")
    assert done.code == 3
    assert done.err == f"anchor: incomplete: {lacking.why}\n"


def test_the_report_says_what_differs_where_it_starts_and_how_it_grows(compare):
    done = compare(SUSPECT)
    assert (done.code, done.err) == (1, "")
    assert done.out == (
        "CONFIG  eager | compiled: 2 header entries differ\n"
        "  torch.backend  eager | inductor\n"
        "  command  ... eager | ... compiled\n"
        "SUSPECT  They part at tanh3@grad, by rounding; nothing says how far that may\n"
        "  drift.\n"
        "  400 matched: 45 identical, 355 differing; only in A 2, only in B 0\n"
        "FIRST DIVERGENCE  step 0 pass 0  tanh3@grad (41 records before it identical)\n"
        "ORIGINS  inputs equal, result not (1 eps = 1.2e-07, float32's relative step)\n"
        "  step 0 pass 0  tanh3@grad: rounding\n"
        "    TanhBackward0 of fc4@grad (equal): 0.35 eps, 56.5 % differ, max 4 ulp\n"
        "GROWTH  differing/all, median error in eps\n"
        "  step       value        grad\n"
        "     0   12/13 0.5   12/13 0.5\n"
        "    99  12/13 1.34  12/13 1.34\n"
        "   199  12/13 3.62  12/13 3.62\n"
        "   299   12/13 9.8   12/13 9.8\n"
        "   399  12/13 26.5  12/13 26.5\n"
        "   499  12/13 71.7  12/13 71.7\n"
        "LOSS  loss parts at step 6, by 1e-6 at 207, by 1e-3 never; tensors part at 0\n"
        "NEXT  anchor stats eager --tensor tanh3@grad --step 0\n"
        "      anchor stats compiled --tensor tanh3@grad --step 0\n"
    )


@pytest.mark.parametrize("parted", range(20))
def test_the_step_at_which_runs_part_has_a_row_however_many_steps_there_are(compare, parted):
    growth = [
        Growth(step, "grad", 5 * (step >= parted), 8, 1.0 if step >= parted else None, None)
        for step in range(20)
    ]
    shown = compare(replace(SUSPECT, growth=growth)).out.partition("GROWTH")[2].partition("LOSS")[0]
    steps = [int(line.split()[0]) for line in shown.splitlines()[2:] if line.strip()]
    assert {0, parted, 19} <= set(steps)
    assert steps == sorted(steps)
    assert len(steps) <= 6


def test_identical_runs_are_told_in_three_lines(compare):
    done = compare(IDENTICAL)
    assert (done.code, done.err) == (0, "")
    assert done.out == (
        "CONFIG  eager | again: the headers agree\n"
        "IDENTICAL  All 400 records of eager and again are bit-identical.\n"
        "  400 matched: 400 identical, 0 differing; only in A 0, only in B 0\n"
    )


def test_an_origin_that_nothing_was_computed_for_is_not_said_to_have_equal_inputs(compare):
    start = replace(SUSPECT.origins[0], cls="starts_unequal", ops=(), parents=(), why="a seed")
    text = compare(replace(SUSPECT, origins=(start,))).out
    assert "ORIGINS  nothing recorded before (1 eps" in text
    assert "tanh3@grad: starts unequal\n    0.35 eps" in text
    assert "\n    a seed\n" in text


def test_figures_of_an_origin_are_never_cut(compare):
    parents = tuple(f"encoder.layers.{layer}.attention.query.weight@value" for layer in range(4))
    many = replace(SUSPECT.origins[0], ops=("NativeLayerNormBackward0",), parents=parents)
    text = compare(replace(SUSPECT, origins=(many,))).out
    assert "\n    0.35 eps, 56.5 % differ, max 4 ulp\n" in text


def test_units_of_rounding_are_not_told_of_tensors_that_have_nothing_in_common(compare):
    other = MEASURE._replace(cosine_distance=0.9, error_eps=1.1e7)
    text = compare(replace(SUSPECT, origins=(replace(ORIGIN, measure=other),))).out
    assert "unrelated, 56.5 % differ\n" in text
    assert "ulp" not in text
    text = compare(replace(SUSPECT, origins=(replace(ORIGIN, max_ulp=2**31),))).out
    assert "0.35 eps, 56.5 % differ\n" in text
    assert "ulp" not in text


@pytest.mark.slow
def test_the_last_origin_is_named_where_that_costs_no_more_than_to_count_it(compare):
    origins = [replace(ORIGIN, place=PLACE._replace(name=f"layer{i}")) for i in range(30)]
    for count in range(1, 30):
        text = compare(replace(SUSPECT, origins=tuple(origins[:count]))).out
        assert "and 1 more" not in text
    assert "more: --json has them all" in text


def test_what_cannot_be_compared_is_told_once(compare):
    found = replace(IDENTICAL, verdict="incomparable", sentence="The runs have nothing in common.")
    done = compare(found)
    assert (done.code, done.err) == (2, "")
    assert done.out.count("nothing in common") == 1
    assert "nothing in common" in compare(found, "--csv", "-").err


def losses(*steps, more=()):
    """Records of the losses at these steps, and of what else was anchored at the first."""
    made = [record("loss", "value", BIAS, step=step) for step in steps]
    return made + [record(name, "value", BIAS, step=steps[0]) for name in more]


@pytest.mark.parametrize(
    ("a", "b", "said"),
    [
        (losses(0, 1, 2, 3), losses(0, 1), "only in A 2 (steps 2-3), only in B 0"),
        (losses(3, 4), losses(0, 3, 4), "only in A 0, only in B 1 (step 0)"),
        (losses(0), losses(0, more=["drop"]), "only in A 0, only in B 1 (drop)"),
        (losses(0, more="pqrs"), losses(0), "only in A 4 (p, q and 2 more), only in B 0"),
        (losses(0, 1, 2), losses(0, 2), "only in A 1, only in B 0"),
    ],
)
def test_what_one_run_has_alone_is_named(tmp_path, a, b, said):
    make_run(tmp_path, a, "a")
    make_run(tmp_path, b, "b")
    assert said in anchor("compare", "a", "b", "--store", tmp_path).out


def test_with_noise_runs_growth_has_a_score(compare):
    growth = tuple(replace(one, score=one.step / 100) for one in SUSPECT.growth)
    assert "step       value        grad  score\n" in compare(replace(SUSPECT, growth=growth)).out


names = (
    st.text(max_size=90)
    | st.text("ab .中ｱ\u0301\u200d\ufe0f☁😀\x1f", max_size=90)
    | st.sampled_from([HOSTILE, "layers.11.attention.query" * 8, "層" * 90])
)
places = st.builds(
    RecordPlace,
    st.integers(0, 10**5),
    *[st.integers(0, 99)] * 2,
    st.integers(0, 999),
    st.sampled_from(["train", "eval"]),
    names,
    st.sampled_from(["grad", "opt.exp_avg"]),
)
figures = st.floats(0, width=32) | st.just(math.nan)
measures = st.builds(
    lambda error, share, eps: MEASURE._replace(error_eps=error, share_differing=share, eps=eps),
    figures,
    figures,
    st.sampled_from([2.0**-23, 2.0**-7, math.nan]),
)
nearnesses = st.builds(
    Nearness,
    *[figures | st.just(math.inf)] * 6,
    st.sampled_from([2.0**-23, 2.0**-7, math.nan]),
    st.sampled_from(["a", "b", None]),
    st.booleans(),
    st.sampled_from(["", "not recorded there"]),
)
origins = st.builds(
    Origin,
    places,
    st.sampled_from(CLASSES),
    st.lists(names, max_size=3).map(tuple),
    st.lists(names, max_size=9).map(tuple),
    measures,
    st.none() | st.integers(0, 10**9),
    names | st.just(""),
    st.integers(1, 10**6),
    nearness=st.none() | nearnesses,
)
growths = st.builds(
    Growth,
    st.integers(0, 30),
    st.sampled_from(["value", "grad", "updated", "opt.momentum_buffer", "opt.exp_avg_sq", HOSTILE]),
    st.integers(0, 10**6),
    st.integers(0, 10**6),
    st.none() | figures,
    st.none() | figures,
)
comparisons = st.builds(
    lambda sentence, first, some, config, grown, notes, reference: replace(
        UNEXPECTED, sentence=sentence, first=first, origins=some, config_diff=config, growth=grown,
        notes=notes, reference=reference,
    ),
    names,
    st.builds(Divergence, places, st.integers(0, 10**9), st.integers(0, 10**9)),
    st.lists(origins, max_size=30),
    st.dictionaries(names, st.tuples(names | st.integers(), names | st.none()), max_size=30),
    st.lists(growths, max_size=60),
    st.lists(names, max_size=30),
    st.none() | names,
)  # fmt: skip


@pytest.mark.slow
@settings(max_examples=examples(60))
@given(comparisons, st.sampled_from([None, 80, 200]))
def test_the_report_is_at_most_25_printable_lines_of_80_columns(found, width):
    lines = report(found, ["anchor stats eager --tensor fc1@grad"], Screen(width))
    assert len(lines) <= 25
    assert all(line.isprintable() and width_of(line) <= 80 for line in lines)


@pytest.mark.slow
@settings(max_examples=examples(30))
@given(comparisons, st.integers(70, 160))
def test_columns_of_a_pipe_are_honoured(found, columns):
    lines = report(found, [], Screen(asked=columns))
    assert all(width_of(line) <= columns for line in lines)


def crowded(**changed):
    """A comparison with more to say than there is room for."""
    config = {f"module.fc{n}": ("Linear", "Linear bias=False") for n in range(5)}
    near = Nearness(2.0, 2.5, 2e-7, 3e-7, 0.9, 0.9, 2.0**-23, "a", clear=True)
    origin = replace(ORIGIN, nearness=near, why="A has another order of its sums " * 6)
    told = OpDifference("forward", "fc1", (), (), "dim [0] | [1]" * 9)
    ops = OpAlignment(123_456, 7_890, 5_432, (told, replace(told, stage="backward")))
    return replace(
        UNEXPECTED,
        config_diff=config,
        origins=(origin,) * 4,
        reference="float64",
        ops=ops,
        **changed,
    )


@pytest.mark.parametrize("columns", [50, 60, 70, 80])
def test_a_crowded_report_keeps_the_reference_and_no_table_without_rows(columns):
    lines = report(crowded(notes=("a note",) * 9), ["anchor stats a"], Screen(asked=columns))
    assert len(lines) <= 25
    assert all(width_of(line) <= columns for line in lines)
    heads = next(n for n, line in enumerate(lines) if line.split()[:2] == ["where", "record"])
    assert lines[heads + 1].split()[-1] == "A"
    growth = next(n for n, line in enumerate(lines) if line.startswith("GROWTH"))
    assert lines[growth].endswith("--json has them all") or lines[growth + 2].split()[0] == "0"


def test_a_pipe_asks_for_columns_by_a_variable(compare, monkeypatch):
    long = replace(SUSPECT, sentence="a word " * 40)
    for columns in (50, 120):
        monkeypatch.setenv("COLUMNS", str(columns))
        widths = [len(line) for line in compare(long).out.partition("\nNEXT")[0].splitlines()]
        assert columns - 10 < max(widths) <= columns
    monkeypatch.setenv("COLUMNS", "wide")
    assert max(map(len, compare(long).out.splitlines())) <= 80


@pytest.mark.parametrize("width", [None, 80])
def test_the_sentence_is_never_cut(width):
    words = " ".join(f"word{number}" for number in range(300))
    lines = report(replace(SUSPECT, sentence=words), [], Screen(width))
    assert words in " ".join(line.strip() for line in lines)
    assert any(line.startswith("ORIGINS") for line in lines)
    assert all(len(line) <= 80 for line in lines)


def test_a_terminal_has_colour_and_a_pipe_has_none():
    coloured = report(UNEXPECTED, [], Screen(80, glyphs=True, color=True))
    assert any("\x1b[1;31mUNEXPECTED\x1b[0m" in line for line in coloured)
    assert any(line.endswith(": \x1b[31mnot rounding\x1b[0m") for line in coloured)
    plain = [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in coloured]
    assert plain == report(UNEXPECTED, [], Screen(80, glyphs=True))
    assert not any("\x1b" in line for line in report(UNEXPECTED, [], PLAIN))


@given(st.lists(st.integers(0, 10**6), min_size=1, unique=True), st.integers(1, 9))
def test_the_steps_shown_are_the_first_the_last_and_some_between(steps, count):
    shown = spread(sorted(steps), count)
    assert shown == sorted(set(shown))
    assert len(shown) == min(count, len(steps))
    assert shown[0] == min(steps)
    if count > 1:
        assert shown[-1] == max(steps)


# -- what to run next


def test_where_all_is_well_nothing_is_left_to_run():
    for verdict in ("identical", "expected"):
        assert next_commands(replace(SUSPECT, verdict=verdict), ("a", "b"), "anchors") == []


def test_an_unexpected_origin_is_looked_at_in_both_runs():
    assert next_commands(UNEXPECTED, ("eager", "x/compiled.zarr"), "/runs") == [
        "anchor stats eager --tensor tanh3@grad --step 0 --store /runs",
        "anchor stats x/compiled.zarr --tensor tanh3@grad --step 0",
        "# record both with ANCHOR_TRACE=0:1 to see the operation and its line",
    ]


def begun(cls, found=SUSPECT, **measure):
    """A comparison whose one origin came from outside."""
    origin = replace(found.origins[0], cls=cls, measure=MEASURE._replace(**measure))
    return replace(found, origins=(origin,))


@pytest.mark.parametrize("found", [SUSPECT, UNEXPECTED])
def test_batches_of_other_sizes_are_compared_after_whole_steps(found):
    found = begun("starts_unequal", found, error_eps=math.nan, measured="shape")
    advice, line = next_commands(found, ("a.zarr", "b"), "/runs")
    assert advice.startswith("# ")
    assert line == "anchor compare a.zarr b --tensor '*@updated' --store /runs"


def test_runs_that_began_otherwise_are_to_begin_alike():
    found = begun("starts_unequal", error_eps=1e7)
    advice, *lines = next_commands(found, ("a", "b"), "anchors")
    assert advice == "# give both the same checkpoint, and the same data in the same order"
    assert [line.split()[:3] for line in lines] == [["anchor", "stats", run] for run in "ab"]
    seeds = replace(found, config_diff={"torch.initial_seed": (3, 4)})
    (advice,) = next_commands(seeds, ("a", "b"), "anchors")
    assert advice == "# give both the same seed (torch.manual_seed): now 3 and 4"


def test_runs_recorded_too_late_are_to_be_recorded_from_the_start():
    (advice,) = next_commands(begun("window_start"), ("a", "b"), "anchors")
    assert "every pass of the first steps" in advice
    found = begun("window_start")
    updated = replace(found.origins[0], place=PLACE._replace(kind="updated"))
    (advice,) = next_commands(replace(found, origins=(updated,)), ("a", "b"), "anchors")
    assert "state restored" in advice


def test_a_bug_beside_another_start_is_what_is_looked_at():
    found = begun("starts_unequal", UNEXPECTED, error_eps=1e7)
    bug = replace(ORIGIN, cls="not_rounding", place=PLACE._replace(name="fc9"))
    found = replace(found, origins=(*found.origins, bug))
    assert "fc9@grad" in next_commands(found, ("a", "b"), "anchors")[0]


def test_advice_is_a_comment_on_every_line_that_it_takes():
    advice = "# " + "give both the same checkpoint " * 6
    lines = report(SUSPECT, [advice], PLAIN)
    place = next(i for i, line in enumerate(lines) if line.startswith("NEXT  # "))
    assert len(lines) > place + 1
    assert all(line.startswith("      # ") for line in lines[place + 1 :])


def test_what_b_calls_otherwise_or_does_later_is_looked_at_there():
    renamed = anchorlib.diagnosis.pairing.Renaming("tanh3", "net.tanh3", "map")
    found = replace(UNEXPECTED, renamed=(renamed,), step_offset=5)
    assert next_commands(found, ("eager", "compiled"), "anchors") == [
        "anchor stats eager --tensor tanh3@grad --step 0",
        "anchor stats compiled --tensor net.tanh3@grad --step 5",
        "# record both with ANCHOR_TRACE=0:1 (B: 5:6) to see the operation and its line",
    ]


def test_to_trace_is_advised_where_nothing_tells_what_to_change():
    def advised(**changes):
        origin = replace(UNEXPECTED.origins[0], **changes)
        lines = next_commands(replace(UNEXPECTED, origins=(origin,)), ("a", "b"), "anchors")
        return any("ANCHOR_TRACE" in line for line in lines)

    assert advised()
    assert advised(changed=(ValueClause("B is 2 times A"),))
    assert not advised(changed=("TanhBackward0 without it | approximate",))
    traced = replace(UNEXPECTED, ops=OpAlignment(1, 0, 0))
    assert not any("ANCHOR" in line for line in next_commands(traced, ("a", "b"), "anchors"))


def test_a_command_to_run_is_one_line_to_copy():
    command = " ".join(["anchor noise eager -- python train.py", *["--option value"] * 12])
    lines = report(SUSPECT, [command], PLAIN)
    place = next(i for i, line in enumerate(lines) if line.startswith("NEXT  "))
    assert lines[place:] == [f"NEXT  {command}"]


# -- files


def test_csv_has_a_row_for_each_pair_in_execution_order(compare, tmp_path):
    place = tmp_path / "pairs.csv"
    assert compare(SUSPECT, "--csv", place).out.startswith("CONFIG")
    with place.open(newline="", encoding="utf-8") as file:
        first, second = csv.DictReader(file)
    assert (first["name"], first["equal"], first["error_eps"]) == ("fc1", "true", "")
    assert first["digest_a"] == first["digest_b"]
    assert (second["name"], second["equal"], second["error_eps"]) == ("tanh3", "false", "0.35")
    assert (second["role"], second["score"], second["kind"]) == ("rounding", "", "value")
    assert second["digest_a"] != second["digest_b"]


@pytest.mark.parametrize("name", [HOSTILE, 'a,b\r\n"c"', "\ud800"])
def test_names_come_back_from_csv(compare, tmp_path, name):
    place = tmp_path / "pairs.csv"
    compare(replace(IDENTICAL, given=(pair(name),)), "--csv", place)
    with place.open(newline="", encoding="utf-8") as file:
        (row,) = csv.DictReader(file)
    assert row["name"] == name.encode(errors="backslashreplace").decode()


def test_jsonl_has_a_record_for_each_pair_and_a_summary(compare, tmp_path):
    place = tmp_path / "pairs.jsonl"
    compare(SUSPECT, "--jsonl", place)
    *pairs, summary = map(json.loads, place.read_text().splitlines())
    assert {one["schema_version"] for one in (*pairs, summary)} == {1}
    assert [(one["type"], one["name"], one["equal"]) for one in pairs] == [
        ("pair", "fc1", True),
        ("pair", "tanh3", False),
    ]
    assert (pairs[0]["error_eps"], pairs[1]["error_eps"], pairs[1]["score"]) == (None, 0.35, None)
    assert summary.pop("type") == "summary"
    jsonschema.validate(summary, SCHEMA)


def test_a_dash_is_stdout_and_then_nothing_else_is(compare):
    done = compare(SUSPECT, "--csv", "-")
    assert len(list(csv.DictReader(io.StringIO(done.out)))) == 2
    lines = compare(SUSPECT, "--jsonl", "-").out.splitlines()
    assert [json.loads(line)["type"] for line in lines] == ["pair", "pair", "summary"]
    refused = compare(SUSPECT, "--csv", "-", "--json")
    assert (refused.code, refused.out) == (2, "")
    assert "--csv - and --json both go to stdout" in refused.err


# -- what the library is asked


def test_the_options_reach_the_comparison(compare, tmp_path):
    names = tmp_path / "names.csv"
    names.write_text("# of A, of B\nencoder.fc1,fc1\n\n fc2 , fc3\n")
    compare(
        *(SUSPECT, "--noise", "n1", "--noise", "grpc://h:1/n2/", "-t", "fc*", "--tensor", "x@grad"),
        *("--map", names, "--store", tmp_path),
    )
    asked = compare.asked
    assert (asked["a"], asked["b"], asked["store"]) == ("eager", "compiled", str(tmp_path))
    assert asked["noise"] == ["n1", "grpc://h:1/n2"]
    assert asked["tensors"] == ["fc*", "x@grad"]
    assert asked["names"] == {"encoder.fc1": "fc1", "fc2": "fc3"}
    compare(SUSPECT)
    assert (asked["tensors"], asked["noise"], asked["names"]) == ("*", [], {})


@pytest.mark.parametrize(
    ("file", "text", "said"),
    [
        ("names.txt", "", "choose .csv, .json"),
        ("names.csv", "a,b,c", "a name of A and one of B"),
        ("names.json", "[1]", "one object of names"),
        ("names.json", "{", "--map"),
        ("names.json", "[" * 100_000, "--map"),
        ("names.csv", None, "No such file"),
    ],
)
def test_a_map_that_cannot_be_read_is_one_line(compare, tmp_path, file, text, said):
    place = tmp_path / file
    if text is not None:
        place.write_text(text)
    done = compare(SUSPECT, "--map", place)
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert said in done.err
