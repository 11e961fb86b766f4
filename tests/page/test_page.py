"""The page in a browser: from disk, without a request, by mouse and by keyboard."""

from __future__ import annotations

import csv
import itertools
import re
from dataclasses import replace

import numpy as np
import pytest
from playwright.sync_api import expect

from anchorlib.diagnosis import Nearness
from anchorlib.operations import OpAlignment, OpDifference
from anchorlib.reading import open_run
from anchorlib.report import packing, page, show
from anchorlib.report.run_view import PageBudget
from anchorlib.store import Writer
from anchorlib.summary import FORMATS, shares_as
from tests.anchorlib.operations.made import made
from tests.anchorlib.report.compared import compared
from tests.cli.made import HOSTILE, make_run, record
from tests.page.large import large_page
from tests.page.runs import PART, STEPS, TENSORS, small_run


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return tmp_path_factory.mktemp("store")


@pytest.fixture(scope="module")
def one(store):
    return page([small_run(store, "alone")])


@pytest.fixture(scope="module")
def pair(store):
    return small_run(store, "a"), small_run(store, "b", parts=True)


@pytest.fixture(scope="module")
def two(pair):
    a, b = pair
    return page([a, b], [compared(a, b)])


@pytest.mark.parametrize("name", ["one", "two"])
def test_it_opens_from_disk_without_a_request_an_error_or_a_sideways_scroll(visit, request, name):
    visited = visit(request.getfixturevalue(name))
    for width, scheme in itertools.product([600, 1280], ["light", "dark"]):
        visited.page.set_viewport_size({"width": width, "height": 900})
        visited.page.emulate_media(color_scheme=scheme)
        visited.requests.clear()
        visited.page.reload()
        visited.page.wait_for_selector("html[data-ready]")
        assert len(visited.requests) == 1  # the file itself
        wide = visited.page.evaluate("document.documentElement.scrollWidth")
        assert wide <= width
        paper = visited.page.evaluate("getComputedStyle(document.body).backgroundColor")
        red = int(re.findall(r"\d+", paper)[0])
        assert (red > 200) == (scheme == "light")


def test_everything_that_can_be_used_has_a_role_and_a_name(visit, two):
    visited = visit(two)
    nameless = visited.page.evaluate(
        """[...document.querySelectorAll(
            'button, select, input, canvas[tabindex], section, [role=region]')].filter((e) => {
          const by = e.getAttribute('aria-labelledby');
          const text = e.getAttribute('aria-label') || (by && document.getElementById(by)
            .textContent) || e.closest('label')?.textContent
            || (e.tagName === 'BUTTON' && e.textContent);
          return !(text && text.trim());
        }).map((e) => e.outerHTML.slice(0, 200))"""
    )
    assert nameless == []
    headings = visited.page.get_by_role("heading", level=2).all_text_contents()
    assert {"Tensors by step", "Exponents by step", "Loss", "Tensors"} <= set(headings)
    assert visited.drawing("Tensors by step").get_attribute("aria-roledescription") == "heat map"


def test_the_answer_stands_on_top_and_leads_to_the_first_difference(visit, two):
    visited = visit(two)
    answer = visited.page.get_by_role("region", name="Answer")
    assert "suspect a and b differ first at step 5 in fc2." in answer.inner_text().lower()
    answer.get_by_role("button", name="show the first difference").click()
    cell = visited.card("Selected cell").inner_text()
    assert "fc2@value at step 5" in cell
    assert "1 of 1" in cell


def test_operations_that_one_run_alone_ran_are_a_table(visit, store):
    a, b = small_run(store, "ops_a"), small_run(store, "ops_b", parts=True)
    one = OpDifference("backward", "tanh2", (made("tanh_backward"),), (made("mul"), made("sub")))
    found = replace(compared(a, b), ops=OpAlignment(62, 1, 2, (one,)))
    text = visit(page([a, b], [found])).page.get_by_role("region", name="Operations of ops_b")
    assert "tanh2\tbackward\ttanh_backward\tmul sub" in text.inner_text()


def test_the_first_difference_is_marked_and_can_be_zoomed_to(visit, two):
    visited = visit(two)
    overview = visited.card("Tensors by step")
    overview.get_by_role("button", name="first difference").click()
    assert visited.said("Tensors by step").startswith("fc2@value, step 5, relative error")
    visited.drawing("Tensors by step").press("ArrowLeft")
    assert visited.said("Tensors by step") == "fc2@value, step 4, bit-equal"


def test_a_click_on_a_cell_shows_its_histogram_its_differences_and_values(visit, two):
    visited = visit(two)
    visited.page.get_by_role("button", name="first difference", exact=True).click()
    drawing = visited.drawing("Tensors by step")
    box = drawing.bounding_box()
    drawing.click(position={"x": box["width"] * 0.9, "y": box["height"] * 0.5})
    tensor, step, _ = visited.said("Tensors by step").split(", ", 2)
    cell = visited.card("Selected cell")
    assert f"{tensor} at {step}" in cell.inner_text()
    assert cell.get_by_role("application").get_attribute("aria-roledescription") == "histogram"


def test_no_table_of_the_selected_cell_is_painted_over_another(visit, two):
    visited = visit(two)
    visited.page.get_by_role("button", name="first difference", exact=True).click()
    tables = visited.card("Selected cell").get_by_role("table").all()
    for width in (600, 900, 1020, 1300):
        visited.page.set_viewport_size({"width": width, "height": 900})
        boxes = [box for table in tables if (box := table.bounding_box())]
        assert len(boxes) == 3
        for one, other in itertools.combinations(boxes, 2):
            apart = (
                one["x"] + one["width"] <= other["x"] or other["x"] + other["width"] <= one["x"],
                one["y"] + one["height"] <= other["y"] or other["y"] + other["height"] <= one["y"],
            )
            assert any(apart), width


def test_the_values_around_the_worst_element_stand_beside_each_other(visit, two, store):
    visited = visit(two)
    table = visited.page.get_by_role("table", name="Values around the worst element")
    rows = [row.split("\t") for row in table.inner_text().splitlines()[2:]]
    ((place, a, b, apart),) = [row for row in rows if len(row) > 3 and row[3].strip()]
    assert place == "[7]"
    assert np.float32(b) == np.nextafter(np.float32(a), np.float32(9))
    exact = float(np.float32(b)) - float(np.float32(a))
    assert float(apart.replace("−", "-")) == pytest.approx(exact, rel=1e-3)


def test_it_can_be_used_by_keyboard_alone(visit, two):
    visited = visit(two)
    drawing = visited.drawing("Tensors by step")
    drawing.focus()
    for key in ["Home", "PageUp", "ArrowDown", "ArrowRight", "ArrowRight"]:
        drawing.press(key)
    said = visited.said("Tensors by step")
    assert said == "fc1@value, step 2, bit-equal"
    drawing.press("Enter")
    assert "fc1@value at step 2" in visited.card("Selected cell").inner_text()
    assert "Bit-equal in b" in visited.card("Selected cell").inner_text()
    drawing.press("+")
    drawing.press("0")
    drawing.press("End")
    assert f"step {STEPS - 1}" in visited.said("Tensors by step")


def test_choosing_keeps_the_focus_and_what_was_opened(visit, two):
    visited = visit(two)
    summary = visited.page.get_by_text("b by itself")
    summary.click()
    card = visited.card("Exponents by step")
    for control in (card.get_by_label("tensor"), card.get_by_role("radio", name="fp16")):
        control.press("ArrowDown")
        held = visited.page.evaluate("document.activeElement.tagName")
        assert held in ("SELECT", "INPUT")
    assert card.get_by_role("radio", name="bf16").is_checked()
    name = visited.card("Tensors").get_by_role("button", name="fc1@grad")
    name.press("Enter")
    assert visited.page.evaluate("document.activeElement.textContent") == "fc1@grad"
    assert "Exponents of fc1@grad" in visited.drawing("Exponents by step").get_attribute(
        "aria-label"
    )
    assert visited.page.evaluate("document.querySelectorAll('#answer details[open]').length") >= 1
    assert summary.locator("..").get_attribute("open") is not None


ODD = {
    "int64": np.array([-(2**40), 0, 3], np.int64),
    "bool": np.array([True, False]),
    "complex64": np.array([1 + 2j, 0, np.nan], np.complex64),
    "bfloat16": np.array([0x3F80, 0x7FC0, 0, 1], np.uint16),
    "float8_e4m3fn": np.array([0x38, 0x7F, 0, 1], np.uint8),
    "float64": np.array([1e-310, -1e300, 1.0]),
    "float32": np.empty((0, 3), np.float32),
}


@pytest.mark.long
def test_every_dtype_mode_shape_and_rank_can_be_shown(visit, tmp_path):
    for run in "ab":
        for rank in range(2):
            parts = []
            for step in range(3):
                for dtype, raw in ODD.items():
                    values = raw if run == "a" or step < 2 else np.roll(raw, 1, axis=0)
                    mode = "summary" if dtype == "float64" else "all"
                    kept = (
                        {"raw": None, "dropped": values} if mode == "summary" else {"raw": values}
                    )
                    where = {"pass_index": rank, "call": step}
                    parts.append(
                        record(dtype, "value", dtype=dtype, mode=mode, step=step, **kept, **where)
                    )
                shape = np.ones((step + 1, 2), np.float32)
                parts.append(record("ragged", "grad", shape, step=step, phase="eval"))
            make_run(tmp_path, parts, run=run, rank=rank)
    a, b = open_run("a", tmp_path), open_run("b", tmp_path)
    visited = visit(page([a, b], [compared(a, b)]))
    table = visited.card("Tensors")
    for name in (*ODD, "ragged"):
        table.get_by_role("button", name=re.compile(f"^{name}@")).click()
        for row in (0, -1):
            drawing = visited.drawing("Tensors by step")
            drawing.press("Home" if row == 0 else "End")
            drawing.press("Enter")
        assert "NaN" in visited.card("Selected cell").inner_text()
    overview = visited.card("Tensors by step").get_by_label("show", exact=True)
    for value in [one.get_attribute("value") for one in overview.locator("option").all()]:
        overview.select_option(value)


def test_shares_of_each_format_are_those_of_the_library(visit, one, store):
    run = small_run(store, "shares")
    visited = visit(page([run]))
    card = visited.card("Exponents by step")
    for selector in ("fc1@grad", "fc1.weight@delta"):
        card.get_by_label("tensor").select_option(label=selector)
        histogram = run[selector].histogram()
        for row in card.get_by_role("row").all()[1:]:
            name, *shown = re.split(r"\s{1,}(?=[<>\d])", row.inner_text().strip())
            shares = shares_as(histogram, name).to_dict()
            for text, share in zip(shown, shares.values(), strict=True):
                assert float(text.strip("<> %")) == pytest.approx(100 * share, rel=0.01, abs=0.001)
        assert set(FORMATS) == {
            row.inner_text().split()[0] for row in card.get_by_role("row").all()[1:]
        }


def test_infinities_are_overflow_on_the_page_too(visit, tmp_path):
    bad = np.array([np.inf, 1, 2, 4, 8, 0], np.float32)
    make_run(tmp_path, [record("w", "grad", bad, step=step) for step in range(2)])
    card = visit(page([open_run("run1", tmp_path)])).card("Exponents by step")
    said = card.get_by_role("status").first.inner_text()
    assert "20 % overflow of 10 elements other than zero and NaN" in said
    assert card.get_by_role("row").all()[1].inner_text().split("\t")[-1] == "20 %"


def test_choosing_a_format_changes_the_sentence_and_the_limits(visit, one):
    visited = visit(one)
    card = visited.card("Exponents by step")
    before = visited.drawing("Exponents by step").screenshot()
    card.get_by_role("radio", name="e4m3").check()
    assert "If stored as e4m3:" in card.get_by_role("status").first.inner_text()
    assert visited.drawing("Exponents by step").screenshot() != before
    assert "with the limits of e4m3" in visited.drawing("Exponents by step").get_attribute(
        "aria-label"
    )


def test_ridge_lines_are_a_second_view(visit, one):
    visited = visit(one)
    visited.card("Exponents by step").get_by_label("view").select_option("ridges")
    drawing = visited.drawing("Exponents by step")
    assert drawing.get_attribute("aria-roledescription") == "ridge lines"


def test_the_table_is_searched_sorted_and_chosen_from(visit, one):
    visited = visit(one)
    card = visited.card("Tensors")
    card.get_by_role("searchbox").fill("grad fc1")
    rows = card.locator("tbody tr")
    assert rows.count() == 2
    card.get_by_role("searchbox").fill("")
    card.get_by_role("button", name="stored").click()
    assert card.get_by_role("columnheader", name="stored").get_attribute("aria-sort") == "ascending"
    assert rows.first.inner_text().startswith("loss@value")
    card.get_by_role("button", name="fc2@grad").click()
    assert "Exponents of fc2@grad" in visited.drawing("Exponents by step").get_attribute(
        "aria-label"
    )


def saved(visited, card):
    """The rows of the CSV that a section saves."""
    with visited.page.expect_download() as download:
        visited.card(card).get_by_role("button", name="as CSV").click()
    with open(download.value.path(), newline="", encoding="utf-8") as file:  # noqa: PTH123
        return list(csv.reader(file))


def test_what_is_shown_can_be_saved_as_csv(visit, one, store):
    visited = visit(one)
    run = small_run(store, "saved")
    head, *rows = saved(visited, "Exponents by step")
    assert head == ["step", "last_step", "exponent", "count"]
    shown = visited.card("Exponents by step").get_by_label("tensor").inner_text().splitlines()
    selected = visited.card("Exponents by step").get_by_label("tensor").input_value()
    found = run[shown[int(selected)].strip()].histogram()
    totals = {}
    for _, _, exponent, count in rows:
        totals[int(exponent)] = totals.get(int(exponent), 0) + int(count)
    assert dict(sorted(totals.items())) == found.bins
    _, *losses = saved(visited, "Loss")
    assert [float(value) for *_, value in losses] == pytest.approx(run["loss"].values().tolist())
    _, *tensors = saved(visited, "Tensors")
    assert [tuple(row[:2]) for row in tensors] == [(name, kind) for name, kind, _ in TENSORS]


def test_a_csv_holds_no_formula(visit, tmp_path):
    make_run(tmp_path, [record('=cmd("x"),\n', "value", step=step) for step in range(2)])
    visited = visit(page([open_run("run1", tmp_path)]))
    rows = saved(visited, "Tensors")
    assert rows[1][0] == '\'=cmd("x"),\n'


NAMES = [
    HOSTILE,
    "</script><script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "'); alert(1); ('",
    "<!--<script>",
    "${alert(1)} `x`",
    "a" * 300,
    "\u2028\u2029\x00end",
]


def test_hostile_names_are_text_and_nothing_else(visit, tmp_path):
    parts = [
        record(name, kind, np.ones(3, np.float32), step=step)
        for step in range(3)
        for name in NAMES
        for kind in ("value", "grad")
    ]
    make_run(tmp_path, parts)
    make_run(tmp_path, [*parts[:-1], record(NAMES[-1], "grad", step=2)], run="b")
    a, b = open_run("run1", tmp_path), open_run("b", tmp_path)
    visited = visit(page([a, b], [compared(a, b, sentence=f"They part in {NAMES[1]}.")]))
    text = visited.page.evaluate("document.body.innerText")
    assert "</script><script>alert(1)</script>@value" in text
    assert not set("\x1b\u202e\u2028\u2029\x00") & set(text)
    assert visited.page.locator("img, b, iframe").count() == 0
    assert visited.page.locator("script").count() == 2
    assert len(visited.requests) == 1
    drawing = visited.drawing("Tensors by step")
    drawing.focus()
    drawing.press("ArrowDown")
    assert visited.page.evaluate("document.documentElement.scrollWidth") <= 1280


def test_a_script_that_is_not_ours_does_not_run(visit, one):
    planted = one.replace("</body>", "<script>document.title = 'planted'</script></body>")
    visited = visit(planted)
    assert visited.page.title() == "anchor: alone"
    assert len(visited.troubles) == 1
    assert "Content Security Policy" in visited.troubles.pop()


def test_steps_that_share_a_column_are_added_up_and_that_is_said(visit, store):
    run = small_run(store, "long")
    html = page([run], budget=PageBudget(cells=3 * len(TENSORS), bin_cells=2 * len(TENSORS)))
    visited = visit(html)
    overview = visited.card("Tensors by step").inner_text()
    assert f"{STEPS} steps in 3 columns: each column takes 4 steps together" in overview
    assert "Each column adds up 6 steps." in visited.card("Exponents by step").inner_text()


def test_a_loss_says_where_it_first_differs(visit, two):
    visited = visit(two)
    loss = visited.drawing("Loss")
    loss.focus()
    loss.press("Home")
    said = visited.said("Loss")
    assert said.startswith("step 0, a: ")
    assert ", b: " in said


def test_norms_ratios_and_figures_have_their_curves(visit, one, store):
    run = small_run(store, "curves")
    visited = visit(one)
    for card, values in (
        ("Gradient norm", np.linalg.norm(run["fc1.weight@grad"].values()[0])),
        (
            "Update-to-weight ratio",
            np.linalg.norm(run["fc1.weight@delta"].values()[0])
            / np.linalg.norm(run["fc1.weight@value"].values()[0]),
        ),
    ):
        drawing = visited.drawing(card)
        drawing.focus()
        drawing.press("Home")
        shown = float(visited.said(card).split(": ")[1].split(", ")[0])
        assert shown == pytest.approx(float(values), rel=1e-5)


def test_a_norm_that_is_not_finite_is_no_number(visit, tmp_path):
    bad = np.array([np.nan, np.inf], np.float32)
    fine = np.array([3.0, 4.0], np.float32)
    parts = [record("w", "grad", raw, step=step) for step, raw in enumerate([fine, bad, fine])]
    make_run(tmp_path, parts)
    visited = visit(page([open_run("run1", tmp_path)]))
    drawing = visited.drawing("Gradient norm")
    for step, shown in enumerate(["5", "–", "5"]):
        drawing.press("ArrowRight")
        assert visited.said("Gradient norm") == f"step {step}, run1, 1 tensor together: {shown}"


def test_the_norm_of_gradients_is_the_one_before_clipping_where_it_is_known(visit, tmp_path):
    raw = np.array([3.0, 4.0], np.float32)
    taken = [record("w", "grad", raw / 5, step=step) for step in range(2)]
    make_run(tmp_path, taken, "taken")
    made = [record("w", "pass_grad", raw, step=step) for step in range(2)]
    make_run(tmp_path, [*made, *taken], "both")
    visited = visit(page([open_run("both", tmp_path)]))
    visited.drawing("Gradient norm").press("Home")
    said = visited.said("Gradient norm")
    assert said.startswith("step 0, both, 1 tensor before clipping: 5")
    assert "both, 1 tensor as the optimizer took them: 1" in said
    visited = visit(page([open_run("taken", tmp_path)]))
    assert "after any clipping: record '*@pass_grad'" in visited.card("Gradient norm").inner_text()


def test_headers_that_differ_are_shown_and_the_equal_ones_on_demand(visit, two):
    visited = visit(two)
    card = visited.card("What the runs say about themselves")
    assert "Nothing differs." in card.inner_text()
    card.get_by_role("checkbox").check()
    assert card.get_by_role("checkbox").is_checked()


@pytest.mark.long
@pytest.mark.parametrize("runs", [1, 2])
def test_a_million_cells_are_drawn_and_none_is_left_out_in_silence(visit, monkeypatch, runs):
    monkeypatch.setattr(packing, "LEVEL", 1)  # half of the time went into a smaller page
    visited = visit(large_page(runs=runs))
    overview = visited.card("Tensors by step").inner_text()
    assert "1,000,000 cells; a pixel shows the highest of its cells" in overview
    assert "Each column adds up 10 steps." in visited.card("Exponents by step").inner_text()
    drawing = visited.drawing("Tensors by step")
    drawing.focus()
    drawing.press("End")
    assert "step 999" in visited.said("Tensors by step")


def test_a_notebook_shows_the_same_page_in_a_frame_of_its_own(browser, store):
    shown = show(small_run(store, "shown"))
    assert shown.html == page([open_run("shown", store)])
    context = browser.new_context(offline=True)
    outer = context.new_page()
    outer.set_content(f"<!doctype html><title>notebook</title>{shown._repr_html_()}")
    frame = outer.frame_locator("iframe")
    expect(frame.get_by_role("region", name="Answer")).to_contain_text("Nothing stands out")
    drawing = frame.get_by_role("region", name="Tensors by step").get_by_role("application")
    drawing.press("Home")
    with outer.expect_download() as download:
        frame.get_by_role("button", name="Save tensors as CSV").click()
    assert download.value.suggested_filename == "tensors.csv"
    context.close()


def test_where_there_is_nothing_it_says_so(visit, tmp_path):
    Writer.open(tmp_path, "empty", 0).close()
    visited = visit(page([open_run("empty", tmp_path)]))
    answer = visited.page.get_by_role("region", name="Answer").inner_text()
    assert "Nothing has been recorded yet." in answer
    assert PART[0] not in answer


def test_which_run_is_nearer_to_a_reference_stands_under_the_origins(visit, pair):
    a, b = pair
    near = Nearness(2.4, 2.36, 2.9e-7, 2.8e-7, 0.5, 0.4, 2.0**-23, "b", clear=True)
    found = compared(a, b)
    origins = [replace(one, nearness=near) for one in found.origins]
    visited = visit(page([a, b], [replace(found, origins=origins, reference="float64")]))
    table = visited.page.get_by_role("region", name="Nearer to the reference")
    expect(table).to_contain_text("float64: how far A and B are from it, in eps of float32")
    cells = table.locator("tbody td").all_inner_texts()
    assert cells[2:] == ["2.4", "2.36", "2.9e-07", "2.8e-07", "B"]
