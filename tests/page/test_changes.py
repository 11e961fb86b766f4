"""What changed stands on the page beside where, and where in the tensor beside the difference."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from anchorlib.reading import open_run
from anchorlib.report import page
from anchorlib.report.rendering import _asset
from tests.anchorlib.report.compared import compared
from tests.cli.made import HOSTILE, make_run, record
from tests.page.runs import small_run
from tests.seeds import examples

WEIGHT = np.ones((16, 8), np.float32)


def pair(store, **changes):
    """The page of two runs: the second has another weight in rows 12 to 15, and a layer more."""
    other = WEIGHT.copy()
    other[12:16] += 1
    make_run(store, [record("fc.weight", "value", WEIGHT)], "a")
    more = [record("extra.0.weight", "value"), record("extra.0.bias", "value")]
    make_run(store, [record("fc.weight", "value", other), *more], "b")
    a, b = open_run("a", store), open_run("b", store)
    return page([a, b], [compared(a, b, **changes)])


def test_what_changed_stands_in_the_answer_beside_where(visit, tmp_path):
    visited = visit(pair(tmp_path, config_diff={"torch": ("2.1", "2.2"), "optimizer.lr": (1, 2)}))
    answer = visited.page.get_by_role("region", name="Answer")
    changed = answer.get_by_role("group", name="What changed")
    assert [one.inner_text() for one in changed.get_by_role("listitem").all()[:1]] == [
        "+extra: added, with 2 names"
    ]
    rows = [row.inner_text().split("\t") for row in changed.get_by_role("row").all()]
    assert rows == [["setting", "a", "b"], ["optimizer.lr", "1", "2"], ["torch", "2.1", "2.2"]]
    where, what = answer.locator(".where").bounding_box(), changed.bounding_box()
    assert abs(where["y"] - what["y"]) < 5
    assert where["x"] + where["width"] <= what["x"]


def test_the_module_tree_of_both_runs_opens(visit, tmp_path):
    visited = visit(pair(tmp_path))
    visited.page.get_by_text("Module tree of both runs").click()
    tree = visited.page.locator(".tree").first
    assert "fc: equal, 1 name" not in tree.inner_text()  # one name needs no number
    assert "extra: added, with 2 names" in tree.inner_text()


def test_a_hostile_setting_or_module_is_text(visit, tmp_path):
    make_run(tmp_path, [record("w", "value", WEIGHT)], "a")
    make_run(tmp_path, [record("w", "value", -WEIGHT), record(HOSTILE, "value")], "b")
    a, b = open_run("a", tmp_path), open_run("b", tmp_path)
    hostile = {"user.<img src=x onerror=alert(1)>": ("<script>alert(1)</script>", HOSTILE)}
    visited = visit(page([a, b], [compared(a, b, config_diff=hostile)]))
    changed = visited.page.get_by_role("group", name="What changed")
    assert "<script>alert(1)</script>" in changed.inner_text()
    assert changed.locator("img, script, b").count() == 0


def test_an_origin_says_where_in_the_tensor_and_shows_it(visit, tmp_path):
    visited = visit(pair(tmp_path))
    answer = visited.page.get_by_role("region", name="Answer")
    assert "differs in rows 12–15 of 16; all 8 columns" in answer.inner_text()
    cell = visited.card("Selected cell")
    assert "rows 12–15 of 16; all 8 columns" in cell.inner_text()
    drawing = cell.get_by_role("application", name="Where in the tensor")
    for _ in range(13):
        drawing.press("ArrowDown")
    said = cell.locator(".footprint .now").text_content()
    assert said == "row 12, column 0, largest difference: 1"


def test_norms_say_in_how_many_steps_clipping_made_them_smaller(visit, tmp_path):
    raw = np.array([3.0, 4.0], np.float32)
    parts = [record("w", "pass_grad", raw, step=step) for step in range(4)]
    parts += [record("w", "grad", raw / (5 if step else 1), step=step) for step in range(4)]
    make_run(tmp_path, sorted(parts, key=lambda one: one.coordinates.step))
    visited = visit(page([open_run("run1", tmp_path)]))
    assert "run1: clipped in 3 of 4 steps, to 1." in visited.card("Gradient norm").inner_text()


@pytest.fixture(scope="module")
def axis(browser):
    """The page's own rule for the ends of an axis, called in the browser."""
    tab = browser.new_page()
    script = f"([low, high, log]) => {{ {_asset('numbers.js')}; return axisEnds(low, high, log); }}"
    yield lambda low, high, log: tab.evaluate(script, [low, high, log])
    tab.close()


LEVELS = st.floats(1e-30, 1e30)
ONCE = settings(
    max_examples=examples(60), suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@ONCE
@given(level=LEVELS, share=st.floats(0, 1e-3), log=st.booleans(), sign=st.sampled_from([-1, 1]))
def test_what_is_constant_up_to_rounding_does_not_fill_the_axis(axis, level, share, log, sign):
    values = sorted([level, level * (1 + share)])
    low, high = np.log10(values) if log else sorted(sign * np.array(values))
    bottom, top = axis(float(low), float(high), log)
    assert bottom < low <= high < top
    assert (high - low) / (top - bottom) <= share / 0.05 + 1e-9


@ONCE
@given(level=LEVELS, share=st.floats(0.06, 1e6), log=st.booleans())
def test_a_trend_fills_the_axis(axis, level, share, log):
    values = np.array([level, level * (1 + share)])
    low, high = np.log10(values) if log else values
    bottom, top = axis(float(low), float(high), log)
    assert bottom < low < high < top
    assert (high - low) / (top - bottom) > 0.9


def test_a_page_of_a_pair_has_a_bounded_size_whatever_the_tensor(tmp_path):
    values = np.zeros((1000, 1000), np.float32)
    noise = np.random.default_rng(0).standard_normal(values.shape).astype(np.float32)
    alone = len(page([small_run(tmp_path, "small")]))
    for name, raw in (("a", values), ("b", noise)):
        make_run(tmp_path, [record("w", "value", raw)], name)
    a, b = open_run("a", tmp_path), open_run("b", tmp_path)
    assert len(page([a, b], [compared(a, b)])) < alone + 30_000
