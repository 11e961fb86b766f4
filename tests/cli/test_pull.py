"""`anchor pull`: the same values in every format, and nothing half written."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anchor_cli.commands import pull
from anchor_cli.records.extract import Extract
from anchor_cli.records.formats import WRITERS
from anchorlib.dtypes import decode
from anchorlib.record import Gap
from tests.cli.made import BIAS, anchor, make_run, record
from tests.strategies import storage_arrays
from tests.warm import warm_python

pytestmark = pytest.mark.slow

PLACE = {
    "step": [0, 1, 1, 2],
    "pass_index": [0, 0, 1, 0],
    "call": [0] * 4,
    "rank": [0] * 4,
    "phase": ["train", "train", "eval, \x1b", "train"],
    "count": [1, 1, 1, 5],
    "attempt": [0] * 4,
}
VALUES = np.stack([BIAS, BIAS + 1, BIAS * 2, np.float32([np.nan, np.inf, -0.0, 0.1])])


@pytest.fixture
def store(tmp_path):
    places = [dict(zip(PLACE, values, strict=True)) for values in zip(*PLACE.values(), strict=True)]
    told = ("step", "pass_index", "phase", "count")
    records = [
        record(raw=raw, **{name: place[name] for name in told})
        for place, raw in zip(places, VALUES, strict=True)
    ]
    half = record("half", raw=np.array([0x3F80, 1], np.uint16), dtype="bfloat16")
    ragged = [record("ragged"), record("ragged", raw=BIAS[:2], step=1)]
    make_run(tmp_path, [*records, half, *ragged])
    return tmp_path


def pulled(store, suffix, *options, tensor="fc2.bias"):
    place = store / f"out{suffix}"
    done = anchor("pull", "run1", "--store", store, "--tensor", tensor, "-o", place, *options)
    assert (done.code, done.out, done.err) == (0, "", "")
    return place


def same(found, wanted):
    assert found.tobytes() == np.asarray(wanted, found.dtype).tobytes()


def test_npz_has_values_and_coordinates(store):
    with np.load(pulled(store, ".npz")) as found:
        assert set(found) == {"value", *PLACE}
        assert found["value"].dtype == np.float32
        same(found["value"], VALUES)
        for name, wanted in PLACE.items():
            assert found[name].tolist() == wanted


def test_npz_of_records_that_differ_in_shape_has_one_value_each(store):
    with np.load(pulled(store, ".npz", tensor="ragged")) as found:
        assert set(found) == {"value_0", "value_1", *PLACE}
        assert found["value_1"].tolist() == BIAS[:2].tolist()


def test_npy_has_the_values(store):
    same(np.load(pulled(store, ".npy")), VALUES)


def test_npy_of_records_that_differ_in_shape_says_what_to_do(store):
    place = store / "out.npy"
    done = anchor("pull", "run1", "--store", store, "--tensor", "ragged", "-o", place)
    assert done.code == 2
    assert "write .npz" in done.err
    assert not place.exists()


def test_csv_has_a_row_for_each_element(store):
    rows = list(csv.DictReader(pulled(store, ".csv").read_text().splitlines()))
    assert list(rows[0]) == [*PLACE, "i0", "value"]
    assert len(rows) == VALUES.size
    same(np.array([row["value"] for row in rows], np.float32), VALUES.ravel())
    for name, wanted in PLACE.items():
        assert [row[name] for row in rows[::4]] == list(map(str, wanted))


def test_a_dash_is_csv_on_stdout(store):
    done = anchor("pull", "run1", "--store", store, "-t", "fc2.bias", "-o", "-", "--step", "0")
    assert done.out == (
        "step,pass_index,call,rank,phase,count,attempt,i0,value\n"
        "0,0,0,0,train,1,0,0,0.0\n0,0,0,0,train,1,0,1,0.5\n"
        "0,0,0,0,train,1,0,2,-0.25\n0,0,0,0,train,1,0,3,3.0\n"
    )
    assert done.out == anchor("pull", "run1", "--store", store, "-t", "fc2.bias", "--step", "0").out


def test_csv_on_stdout_is_the_file_byte_for_byte_and_quotes_what_needs_it(store):
    done = anchor("pull", "run1", "--store", store, "-t", "fc2.bias")
    assert done.out == pulled(store, ".csv").read_text()
    assert ',"eval, \x1b",' in done.out


def test_csv_on_a_terminal_obeys_no_phase(store, monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    made = Terminal()
    monkeypatch.setattr(pull.sys, "stdout", made)
    pull._print(Extract("x", "value", [record("x", "value", BIAS, phase="\x1b[1m")]))
    assert "\\x1b[1m" in made.getvalue()
    assert "\x1b" not in made.getvalue()


def test_pt_has_tensors_of_the_recorded_dtype(store):
    torch = pytest.importorskip("torch")
    found = torch.load(pulled(store, ".pt", tensor="half"), weights_only=True)
    assert found["value"].dtype == torch.bfloat16
    assert found["value"].view(torch.uint16).tolist() == [[0x3F80, 1]]
    assert found["step"].tolist() == [0]


def test_pt_and_safetensors_tell_where_each_record_is_from(store):
    torch = pytest.importorskip("torch")
    safetensors = pytest.importorskip("safetensors")
    whole = torch.load(pulled(store, ".pt"), weights_only=True)
    assert {name: list(whole[name]) for name in PLACE} == PLACE
    with safetensors.safe_open(pulled(store, ".safetensors"), "pt") as found:
        for name in set(PLACE) - {"phase"}:
            assert found.get_tensor(name).tolist() == PLACE[name]
        phases = json.loads(found.metadata()["anchor.phases"])
        codes = found.get_tensor("phase").tolist()
    assert [phases[code] for code in codes] == PLACE["phase"]


def test_safetensors_has_tensors_of_the_recorded_dtype(store):
    safetensors = pytest.importorskip("safetensors.torch")
    found = safetensors.load_file(pulled(store, ".safetensors", tensor="half"))
    assert str(found["value"].dtype) == "torch.bfloat16"
    assert found["rank"].tolist() == [0]


def test_parquet_has_a_row_for_each_record(store):
    parquet = pytest.importorskip("pyarrow.parquet")
    found = parquet.read_table(pulled(store, ".parquet", tensor="ragged")).to_pydict()
    assert found["step"] == [0, 1]
    assert found["shape"] == [[4], [2]]
    assert found["value"] == [BIAS.tolist(), BIAS[:2].tolist()]
    whole = parquet.read_table(pulled(store, ".parquet")).to_pydict()
    assert {name: whole[name] for name in PLACE} == PLACE


def test_json_with_a_file_says_what_was_written(store):
    place = store / "out.npz"
    done = anchor("pull", "run1", "--store", store, "-t", "half", "-o", place, "--json")
    assert done.json == {
        "run": "run1",
        "tensor": "half",
        "kind": "grad",
        "dtype": "bfloat16",
        "records": 1,
        "shape": [2],
        "file": str(place),
        "bytes": place.stat().st_size,
    }


def test_json_without_a_file_has_the_values_and_null_for_what_is_not_finite(store):
    done = anchor("pull", "run1", "--store", store, "-t", "fc2.bias", "--step", "2", "--json")
    assert (done.json["step"], done.json["phase"], done.json["count"]) == ([2], ["train"], [5])
    assert done.json["value"] == [[None, None, -0.0, pytest.approx(0.1)]]


@pytest.mark.parametrize(
    ("options", "steps"),
    [
        (["--step", "1"], [1, 1]), (["--step", "1:"], [1, 1, 2]), (["--pass", "1"], [1]),
        (["--call", "0", "--step", ":1"], [0]), (["--rank", "0", "--phase", "train"], [0, 1, 2]),
    ],
)  # fmt: skip
def test_options_narrow_it(store, options, steps):
    done = anchor("pull", "run1", "--store", store, "-t", "fc2.bias", *options, "--json")
    assert done.json["step"] == steps


def test_all_ranks_come_and_say_which_they_are(store):
    make_run(store, [record(raw=BIAS * 3)], rank=1)
    done = anchor("pull", "run1", "--store", store, "-t", "fc2.bias", "--json").json
    assert done["rank"] == [0, 0, 0, 0, 1]
    assert done["value"][4] == (BIAS * 3).tolist()


def test_a_selector_of_several_tensors_names_them(store):
    done = anchor("pull", "run1", "--store", store, "-t", "*")
    assert done.code == 2
    assert done.out == ""
    assert "names 3 tensors, pull takes one: fc2.bias@grad, half@grad, ragged@grad" in done.err


def test_summaries_have_no_values_to_pull(tmp_path):
    make_run(tmp_path, [record(raw=None, dropped=BIAS, mode="summary")])
    done = anchor("pull", "run1", "--store", tmp_path, "-t", "fc2.bias")
    assert done.code == 2
    assert "anchor stats" in done.err


def test_values_that_were_dropped_are_told_and_the_rest_comes(tmp_path):
    gap = Gap("fc2.bias", "grad", "all", "line full: values dropped", 1, 1, 1)
    make_run(tmp_path, [record(), record(raw=None, dropped=BIAS, step=1)], gaps=[gap])
    done = anchor("pull", "run1", "--store", tmp_path, "-t", "fc2.bias", "--json")
    assert (done.code, done.json["step"]) == (3, [0])
    assert done.err == ("anchor: incomplete: fc2.bias@grad: the values of 1 record were not kept\n")


@pytest.mark.parametrize(
    ("suffix", "module", "extra"),
    [(".parquet", "pyarrow", "parquet"), (".safetensors", "safetensors.torch", "safetensors")],
)
def test_without_an_extra_one_line_says_what_to_install(store, monkeypatch, suffix, module, extra):
    monkeypatch.setitem(sys.modules, module, None)
    place = store / f"out{suffix}"
    done = anchor("pull", "run1", "--store", store, "-t", "fc2.bias", "-o", place)
    assert done.code == 2
    assert f"pip install 'anchorlib[{extra}]'" in done.err
    assert not place.exists()


def test_a_link_is_written_through(store):
    (store / "real").mkdir()
    (store / "out.csv").symlink_to(store / "real" / "out.csv")
    pulled(store, ".csv")
    assert (store / "out.csv").is_symlink()
    assert (store / "real" / "out.csv").read_text().startswith("step,")


@pytest.mark.parametrize("suffix", WRITERS)
def test_a_disk_that_is_full_is_one_line_that_names_the_file(tmp_path, suffix):
    make_run(tmp_path, [record(raw=np.random.default_rng(0).random(3000))])
    place = tmp_path / f"out{suffix}"
    # A bound on the size of files fails in the same way, and in the middle of one.
    code = (
        "import resource, signal, sys\nfrom anchor_cli.main import main\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))\nsys.exit(main(sys.argv[1:]))"
    )
    where = ["pull", "run1", "--store", tmp_path, "-t", "fc2.bias", "-o", place]
    done = subprocess.run(
        [warm_python(), "-c", code, *where],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"anchor: cannot write {place}: File too large\n"
    assert not list(tmp_path.glob("*out*"))


@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
def test_complex_numbers_come_whole_or_with_a_sentence(tmp_path, suffix):
    make_run(tmp_path, [record(raw=np.array([1 + 2j], np.complex128))])
    place = tmp_path / f"out{suffix}"
    done = anchor("pull", "run1", "--store", tmp_path, "-t", "fc2.bias", "-o", place)
    assert (done.code, place.exists()) in [(0, True), (2, False)]
    assert done.err.count("\n") == (done.code == 2)


@given(
    st.data(), st.sampled_from(["float16", "bfloat16", "float8_e4m3fn", "int32", "bool", "float64"])
)
def test_npz_and_csv_read_back_exactly(data, dtype):
    raw = data.draw(storage_arrays(dtype, (2, 3)))
    extract = Extract("x", "value", [record("x", "value", raw, dtype=dtype)])
    wanted = decode(raw, dtype)
    file = io.BytesIO()
    WRITERS[".npz"](extract, file)
    file.seek(0)
    np.testing.assert_array_equal(np.load(file)["value"][0], wanted)
    file = io.BytesIO()
    WRITERS[".csv"](extract, file)
    rows = list(csv.DictReader(io.StringIO(file.getvalue().decode())))
    if wanted.dtype != bool:
        texts = np.array([row["value"] for row in rows], wanted.dtype)
        np.testing.assert_array_equal(texts, wanted.ravel())
    assert [(row["i0"], row["i1"]) for row in rows[:2]] == [("0", "0"), ("0", "1")]


def test_a_single_number_has_no_index(tmp_path):
    make_run(tmp_path, [record("loss", "value", np.float32(2.5).reshape(()))])
    done = anchor("pull", "run1", "--store", tmp_path, "-t", "loss")
    assert done.out == (
        "step,pass_index,call,rank,phase,count,attempt,value\n0,0,0,0,train,1,0,2.5\n"
    )
    document = json.loads(anchor("pull", "run1", "--store", tmp_path, "-t", "loss", "--json").out)
    assert (document["shape"], document["value"]) == ([], [2.5])


def test_what_a_resumed_run_recorded_again_says_so():
    again = [record(attempt=attempt, rank=3, step=attempt) for attempt in (0, 2)]
    extract = Extract("x", "value", again)
    assert extract.place["attempt"].tolist() == [0, 2]
    assert extract.place["rank"].tolist() == [3, 3]
