"""Contract, sections 2 and 3: `compare`, on runs that sessions recorded."""

from __future__ import annotations

import contextlib
import csv
import json
import os
import pty
import re
import subprocess
from pathlib import Path

import jsonschema
import pytest
import torch
from torch import nn

import anchorlib
from anchor_server import Collector
from tests.cli.made import COMMAND, anchor, environment, spawn
from tests.cli.test_compare import SCHEMA
from tests.contract.runs import recorded


class Tanh(torch.autograd.Function):
    """tanh whose backward is exact, rounded otherwise, or wrong; its forward is always the same."""

    @staticmethod
    def forward(ctx, x, how):
        y = torch.tanh(x)
        ctx.save_for_backward(y)
        ctx.how = how
        return y

    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        if ctx.how == "fused":
            return torch.addcmul(g, g * y, y, value=-1), None
        return g * (1 - (y.bfloat16().float() if ctx.how == "wrong" else y) ** 2), None


class Act(nn.Module):
    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how

    def forward(self, x):
        return Tanh.apply(x, self.how)


def training(
    session: anchorlib.Session, how: str = "exact", scale: float = 1.0, seed: int = 0
) -> None:
    """Three steps of a small net; `scale` perturbs where it starts."""
    torch.manual_seed(seed)
    layers = (nn.Linear(8, 32), Act("exact"), nn.Linear(32, 32), Act(how), nn.Linear(32, 1))
    model = nn.Sequential(*layers)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(scale)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.randn(16, 8)
    session.watch(model, tensors="*", optimizer=optimizer)
    for _ in range(3):
        optimizer.zero_grad()
        loss = anchorlib.anchor(model(x).pow(2).mean(), "loss")
        loss.backward()
        optimizer.step()


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("compare") / "anchors"
    torch.manual_seed(0)  # the header has the seed as a session found it
    recorded(place, training, "eager")
    recorded(place, training, "again")
    for how in ("fused", "wrong"):
        recorded(place, lambda session, how=how: training(session, how), how)
    for number in range(2):
        scale = 1 + (-1) ** number * 2.0**-23
        recorded(place, lambda session, scale=scale: training(session, scale=scale), f"n{number}")
    recorded(place, lambda _: anchorlib.anchor(torch.ones(2), "alone"), "other")
    torch.manual_seed(1)
    recorded(place, lambda session: training(session, seed=1), "seed")
    return place


NOISE = ("--noise", "n0", "--noise", "n1")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("other", "options", "verdict", "code"),
    [
        ("again", (), "identical", 0),
        ("fused", (), "suspect", 1),
        ("fused", ("--fail-on", "unexpected"), "suspect", 0),
        ("fused", NOISE, "expected", 0),
        ("wrong", (), "unexpected", 1),
        ("wrong", (*NOISE, "--fail-on", "unexpected"), "unexpected", 1),
        ("n0", (), "suspect", 1),
        ("seed", (), "suspect", 1),
        ("other", (), "incomparable", 2),
    ],
)
def test_verdicts_and_exit_codes_are_the_contracts(store, other, options, verdict, code):
    done = anchor("compare", "eager", other, *options, "--store", store, "--json")
    assert (done.json["verdict"], done.code) == (verdict, code)
    jsonschema.validate(done.json, SCHEMA)
    assert (done.json["a"], done.json["b"]) == ("eager", other)
    assert done.json == json.loads(
        json.dumps(
            anchorlib.compare(
                "eager", other, store=store, noise=["n0", "n1"] if NOISE[0] in options else ()
            ).to_dict()
        )
    )


@pytest.mark.parametrize(("other", "cls"), [("fused", "rounding"), ("wrong", "not_rounding")])
def test_the_origin_is_the_backward_that_was_changed(store, other, cls):
    said = anchor("compare", "eager", other, "--store", store, "--json").json
    (origin,) = [one for one in said["origins"] if one["step"] == 0]
    assert (origin["name"], origin["kind"], origin["class"]) == ("2", "grad", cls)
    assert origin["parents"] == ["3@grad"]
    assert origin["ops"] == ["TanhBackward"]
    first = said["first"]
    assert [first[key] for key in ("step", "pass_index", "name", "kind")] == [0, 0, "2", "grad"]
    text = anchor("compare", "eager", other, "--store", store).out
    assert text.count("\n") <= 25
    assert re.search(r"^FIRST DIVERGENCE  step 0 pass 0  2@grad ", text, re.MULTILINE)


def test_a_suspicion_names_the_anchor_noise_line_that_settles_it(store):
    text = anchor("compare", "eager", "fused", "--store", store).out
    line = text.partition("NEXT  ")[2].replace("\\\n", " ").split()
    assert line[:5] == ["anchor", "noise", "eager", "--store", str(store)]
    assert "--" in line
    text = anchor("compare", "eager", "n0", "--store", store).out
    assert "NEXT  anchor noise eager" in text  # a start that is one rounding error away
    text = anchor("compare", "eager", "seed", "--store", store).out
    assert "NEXT  # give both the same seed" in text


@pytest.mark.slow
def test_runs_of_two_stores_and_of_a_collector_are_compared(store, tmp_path):
    recorded(tmp_path, training, "there")
    paths = (store / "eager.zarr", tmp_path / "there.zarr")
    assert anchor("compare", *paths, "--json").json["verdict"] == "identical"
    with Collector(store, bind="127.0.0.1:0") as collector:
        url = f"grpc://{collector.address}"
        found = spawn("compare", paths[1], f"{url}/fused/", "--json")
        assert (found.returncode, found.stderr) == (1, "")
        assert json.loads(found.stdout)["verdict"] == "suspect"
        named = spawn("compare", "eager", "again", env=environment(ANCHOR_STORE=url))
        assert (named.returncode, named.stdout.count("IDENTICAL")) == (0, 1)


def test_a_live_run_is_compared_as_far_as_it_is(store, tmp_path):
    with anchorlib.start("live", store=tmp_path) as session:
        training(session)
        session.flush()
        done = anchor("compare", store / "eager.zarr", tmp_path / "live.zarr", "--json")
    assert (done.code, done.json["verdict"]) == (0, "identical")
    assert done.json["counts"]["only_b"] == 0


def test_selectors_say_what_is_compared(store):
    where = ("compare", "eager", "fused", "--store", store, "--json")
    assert anchor(*where, "--tensor", "loss", "-t", "*@value").json["counts"]["matched"] < 60
    unknown = anchor(*where, "--tensor", "lsos")
    assert (unknown.code, unknown.out) == (2, "")
    assert "did you mean 'loss'" in unknown.err


def test_a_map_says_what_is_called_differently(tmp_path):
    for name, values in {"left": [1.0, 2.0], "right": [50.0, -7.0]}.items():
        recorded(tmp_path, lambda _, n=name, v=values: anchorlib.anchor(torch.tensor(v), n), name)
    where = ("compare", "left", "right", "--store", tmp_path)
    assert "(map)" not in anchor(*where).out
    names = tmp_path / "names.json"
    names.write_text('{"left": "right"}')
    assert anchor(*where, "--map", names, "--json").json["counts"]["differing"] == 1
    text = anchor(*where, "--map", names).out
    assert "NOTE  renamed (map): left is right in B\n" in text
    assert "anchor stats right --tensor right@value --step 0" in text


@pytest.mark.slow
def test_progress_is_drawn_on_a_terminal_and_not_into_the_answer(store):
    main, other = pty.openpty()
    with subprocess.Popen(
        [*COMMAND, "compare", "eager", "fused", "--store", store, "--json"],
        stdout=subprocess.PIPE, stderr=other, text=True, env=environment(TERM="xterm"),
    ) as process:  # fmt: skip
        os.close(other)
        drawn = b""
        with contextlib.suppress(OSError):  # what Linux says at the end of a terminal
            while part := os.read(main, 4096):
                drawn += part
        assert json.loads(process.stdout.read())["verdict"] == "suspect"
    os.close(main)
    assert b"comparing eager and fused" in drawn


def test_csv_is_the_two_column_file_that_people_used_to_diff(store, tmp_path):
    place = tmp_path / "pairs.csv"
    anchor("compare", "eager", "fused", "--store", store, "--csv", place)
    with place.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    run = anchorlib.open_run("eager", store)
    assert len(rows) == sum(len(run.series(i.name, i.kind)) for i in run.tensors())
    assert [int(row["order"]) for row in rows] == sorted(int(row["order"]) for row in rows)
    for row in rows:
        assert (row["equal"] == "true") == (row["digest_a"] == row["digest_b"])
        assert (row["error_eps"] != "") == (row["equal"] == "false")
        series = run.series(row["name"], row["kind"])
        assert row["digest_a"] in series.columns["digest"]


@pytest.mark.slow
def test_html_is_one_page_with_the_answer(store, tmp_path):
    place = tmp_path / "page.html"
    done = anchor("compare", "eager", "wrong", "--store", store, "--html", place)
    assert (done.code, done.err) == (1, "")
    page = place.read_text(encoding="utf-8")
    assert page.lower().startswith("<!doctype html>")
    assert "more than rounding" in page


def test_gaps_where_the_answer_depends_on_them_are_exit_3(tmp_path):
    def lossy(session: anchorlib.Session) -> None:
        for device in ("cpu", "meta", "cpu"):
            anchorlib.anchor(torch.ones(2, device=device), "x")

    for name in ("a", "b"):
        recorded(tmp_path, lossy, name)
    done = anchor("compare", "a", "b", "--store", tmp_path)
    assert done.code == 3
    assert done.err.startswith("anchor: incomplete: ")
    assert done.err.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["eager", "fusde"], "did you mean 'fused'"),
        (["eager"], "compare takes two, as `anchor compare A B`"),
        (["eager", "fused", "--noise", "n9"], "no run 'n9'"),
        (["eager", "fused", "--fail-on", "expected"], "'--fail-on'"),
    ],
)
def test_what_cannot_be_compared_is_exit_2_with_one_line(store, words, said):
    done = anchor("compare", *words, "--store", store)
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert said in done.err
