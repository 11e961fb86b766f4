"""The operations around an origin, drawn for both runs side by side; red where they part."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import anchorlib
from anchorlib.names import escape
from anchorlib.report import page
from tests.by_hand import tanh_by_hand
from tests.cli.made import HOSTILE
from tests.page.test_accessible import axe, objections  # noqa: F401  # a fixture


def trained(store, name, activation, *, trace):
    """One step of a small net whose activation has a name that is hard to show."""
    torch.manual_seed(0)
    model = nn.Sequential()
    model.add_module("fc1", nn.Linear(8, 16))
    model.add_module(HOSTILE, activation)
    model.add_module("fc2", nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with anchorlib.start(name, store=store) as session:
        session.watch(model, optimizer=optimizer)
        if trace:
            session.trace(1)
        model(torch.ones(32, 8).cumsum(0) / 32).square().sum().backward()
        optimizer.step()
    return anchorlib.open_run(name, store)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    store = tmp_path_factory.mktemp("runs")
    torch.manual_seed(0)
    return (
        trained(store, "a", nn.Tanh(), trace=True),
        trained(store, "b", tanh_by_hand(), trace=True),
        trained(store, "untraced", tanh_by_hand(), trace=False),
    )


@pytest.fixture(scope="module")
def traced_page(runs):
    a, b, _ = runs
    return page([a, b], [anchorlib.compare(a, b)])


def test_the_operations_around_an_origin_stand_side_by_side_red_where_they_part(visit, traced_page):
    shown = visit(traced_page).page
    drawings = shown.locator(".vicinity figure")
    assert [one.locator("figcaption").inner_text() for one in drawings.all()] == ["a", "b"]
    red = [one.locator(".box.differs .what").all_text_contents() for one in drawings.all()]
    assert red == [["≠ tanh_backward"], ["≠ mul", "≠ rsub", "≠ mul"]]
    made = [one.locator(".box.end .what").all_text_contents() for one in drawings.all()]
    assert made == [["≠ tanh_backward"], ["≠ mul"]]
    left, right = (one.bounding_box() for one in drawings.all())
    assert left["x"] + left["width"] <= right["x"]
    for one in drawings.all():
        assert 4 <= one.locator(".box").count() <= 12
        boxes = [box.bounding_box() for box in one.locator(".box rect").all()]
        assert len({(box["x"], box["y"]) for box in boxes}) == len(boxes)


def test_a_drawing_says_what_it_shows_and_names_are_text(visit, traced_page):
    shown = visit(traced_page).page
    first, second = shown.get_by_role("img", name="Operations of").all()
    said = first.get_attribute("aria-label")
    assert said.startswith("Operations of a around fc1@grad: ")
    assert "b runs mul sub mul here; equal bits go in, other bits come out" in said
    assert f"tanh_backward in {escape(HOSTILE)}, from" in said
    assert "a runs tanh_backward here" in second.get_attribute("aria-label")
    assert shown.locator(".vicinities b").count() == 0


@pytest.mark.long
def test_axe_finds_nothing_wrong_with_drawings(visit, axe, traced_page):  # noqa: F811
    visited = visit(traced_page, viewport={"width": 600, "height": 900})
    assert visited.page.locator(".vicinity svg").count() == 2
    for scheme in ("light", "dark"):
        visited.page.emulate_media(color_scheme=scheme)
        assert objections(axe, visited.page) == [], scheme


def test_nothing_is_drawn_where_one_run_was_not_traced(visit, runs):
    a, _, untraced = runs
    visited = visit(page([a, untraced], [anchorlib.compare(a, untraced)]))
    assert visited.page.locator(".vicinities").count() == 0
