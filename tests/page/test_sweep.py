"""More than two runs: each in a small picture beside the first, all on one scale."""

from __future__ import annotations

from dataclasses import replace

import pytest

from anchorlib.report import page
from tests.anchorlib.report.compared import compared
from tests.page.runs import small_run


@pytest.fixture(scope="module")
def sweep(tmp_path_factory):
    store = tmp_path_factory.mktemp("store")
    runs = [small_run(store, f"lr{number}", parts=number > 1) for number in range(5)]
    found = [
        replace(compared(runs[0], one), config_diff={"optimizer.lr": (0, number)})
        for number, one in enumerate(runs[1:], 1)
    ]
    return page(runs, found)


def test_each_run_of_a_sweep_stands_beside_the_first(visit, sweep):
    visited = visit(sweep)
    items = visited.card("Runs side by side").get_by_role("listitem").all()
    assert len(items) == 4
    said = [one.inner_text() for one in items]
    assert "no difference; optimizer.lr = 1" in said[0]
    assert "from step 5 on, fc2@value first; optimizer.lr = 2" in said[1]
    drawing = items[1].get_by_role("application")
    assert drawing.get_attribute("aria-label") == "Loss of lr2 beside lr0"
    drawing.press("Home")
    assert items[1].locator(".now").text_content().startswith("step 0, lr0: ")


def test_choosing_a_run_of_a_sweep_shows_its_comparison(visit, sweep):
    visited = visit(sweep)
    card = visited.card("Runs side by side")
    card.get_by_role("button", name="lr3", exact=True).press("Enter")
    assert card.get_by_role("button", name="lr3", exact=True).get_attribute("aria-pressed") == (
        "true"
    )
    assert visited.page.evaluate("document.activeElement.textContent") == "lr3"
    assert "Difference to lr3" in visited.card("Selected cell").inner_text()
    legend = visited.card("Loss").locator(".legend").inner_text().split()
    assert legend == ["lr0", "lr3"]


def test_every_figure_of_a_sweep_can_be_drawn_and_saved(visit, sweep):
    visited = visit(sweep)
    card = visited.card("Runs side by side")
    for what in ("loss", "gradients", "tensor"):
        card.get_by_label("show").select_option(what)
        with visited.page.expect_download():
            card.get_by_role("button", name="as CSV").click()


def test_verdicts_of_a_sweep_are_a_line_each_and_open(visit, sweep):
    visited = visit(sweep)
    answer = visited.page.get_by_role("region", name="Answer")
    lines = answer.locator("summary.answer")
    assert lines.count() == 4
    assert answer.get_by_role("group", name="What changed").count() == 1
    lines.last.click()
    assert answer.get_by_role("group", name="What changed").count() == 2


def test_two_runs_need_no_small_pictures(visit, tmp_path):
    a, b = small_run(tmp_path, "a"), small_run(tmp_path, "b")
    visited = visit(page([a, b], [compared(a, b)]))
    assert not visited.page.locator("#multiples").is_visible()
