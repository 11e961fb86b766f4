"""`anchor import`: folders of dumps become runs that every command reads."""

from __future__ import annotations

import os
import pickle
import shlex
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from anchor_cli.commands.importing import EXAMPLES
from anchor_cli.imports.placing import DumpCoordinates, Placing, natural
from anchorlib import open_run
from anchorlib.errors import OptionError
from tests.cli.made import HOSTILE, anchor
from tests.security.limited import Limited
from tests.warm import warm_python


def dump(folder: Path, path: str, value: object) -> None:
    file = folder / path
    file.parent.mkdir(parents=True, exist_ok=True)
    torch.save(value, file)


def tensors(store, run="dumps"):
    return [(info.name, info.kind) for info in open_run(run, store).tensors()]


@pytest.mark.parametrize(
    ("path", "step", "name", "kind"),
    [
        ("step_12/fc1", 12, "fc1", "value"),
        ("step12/encoder/fc1.weight", 12, "encoder.fc1.weight", "value"),
        ("Iter-7/fc1", 7, "fc1", "value"),
        ("epoch3/fc1", 3, "fc1", "value"),
        ("epoch_3/step_12/fc1", 12, "epoch_3.fc1", "value"),
        ("global_step1000/fc1", 1000, "fc1", "value"),
        ("acts/fc1.step=3", 3, "acts.fc1", "value"),
        ("fc1_step_3_out", 3, "fc1.out", "value"),
        ("12/fc1", 12, "fc1", "value"),
        ("00012.fc1", 12, "fc1", "value"),
        ("fc1_12", 12, "fc1", "value"),
        ("fc1.12", 12, "fc1", "value"),
        ("fc1", 0, "fc1", "value"),
        ("layers3/fc1", 0, "layers3.fc1", "value"),
        ("12", 12, "tensor", "value"),
        ("grads/step_2/fc1", 2, "fc1", "grad"),
        ("step_2/fc1.grad", 2, "fc1", "grad"),
        ("fc1_grad_2", 2, "fc1", "grad"),
        ("grad_fc1_2", 2, "fc1", "grad"),
        ("step_2/fc1@delta", 2, "fc1", "delta"),
        ("gradual/fc1", 0, "gradual.fc1", "value"),
        ("step_2/grads", 2, "tensor", "grad"),
    ],
)
def test_the_rule_reads_these_paths_so(path, step, name, kind):
    place = Placing().of_path(path).of(())
    assert (place.step, place.name, place.kind) == (step, name, kind)


def test_pass_and_rank_are_words_with_numbers():
    place = Placing().of_path("rank1/step_2/pass_3/fc1").of(())
    assert place == DumpCoordinates(step=2, pass_index=3, rank=1, name="fc1")


def test_keys_go_on_where_the_path_ends():
    place = Placing().of_path("step_2/acts")
    assert place.of(("fc1", "weight")).name == "acts.fc1.weight"
    assert place.of(("grad", "fc1")) == DumpCoordinates(2, name="acts.fc1", kind="grad")
    assert Placing().of_path("step_2").of(("fc1@opt.exp_avg",)) == DumpCoordinates(
        2, name="fc1", kind="opt.exp_avg"
    )


@given(
    step=st.integers(0, 10**6),
    name=st.lists(st.sampled_from("abcdef"), min_size=1, max_size=4).map("".join),
    folders=st.lists(st.sampled_from(["enc", "dec", "block"]), max_size=3),
    form=st.sampled_from(["step_{}/{}", "{}/{}", "{:08d}.{}"]),
)
def test_a_step_in_front_is_found_whatever_the_name(step, name, folders, form):
    path = form.format(step, "/".join([*folders, name]))
    assert Placing().of_path(path).of(()) == DumpCoordinates(step, name=".".join([*folders, name]))


def test_a_pattern_takes_the_place_of_the_rule():
    placing = Placing(r"(?P<name>.*)-s(?P<step>\d+)-p(?P<pass>\d+)-(?P<kind>\w+)")
    assert placing.of_path("12/fc1-s3-p1-gradient") == DumpCoordinates(
        3, 1, name="12.fc1", kind="grad"
    )
    assert placing.of_path("12/fc1") is None
    only_step = Placing(r"_s(?P<step>\d+)_")
    assert only_step.of_path("a/fc1_s3_out") == DumpCoordinates(3, name="a.fc1.out")


@pytest.mark.parametrize("pattern", ["(", r"(\d+)", r"(?P<stp>\d+)", "(?P<step>.*)(?P<size>x)"])
def test_a_pattern_that_cannot_be_is_refused(pattern):
    with pytest.raises(OptionError, match="--step-pattern"):
        Placing(pattern)


@given(st.lists(st.integers(0, 10**6), min_size=2))
def test_numbers_in_names_sort_as_numbers(numbers):
    names = [f"fc{number}.out" for number in numbers]
    assert sorted(names, key=natural) == [f"fc{number}.out" for number in sorted(numbers)]


def test_what_was_dumped_comes_back_bit_for_bit(tmp_path):
    folder, store = tmp_path / "dumps", tmp_path / "anchors"
    values = {
        "f32": torch.randn(3, 4),
        "bf16": torch.randn(5).bfloat16(),
        "fp8": torch.randn(6).to(torch.float8_e4m3fn),
        "ints": torch.arange(4),
        "flags": torch.tensor([True, False]),
        "complex": torch.randn(2, dtype=torch.complex64).conj(),
        "scalar": torch.tensor(2.5),
        "empty": torch.empty(0, 3),
        "strided": torch.randn(4, 6)[:, ::2].T,
        "parameter": torch.nn.Parameter(torch.ones(2)),
    }
    for name, value in values.items():
        dump(folder, f"step_3/{name}.pt", value)
    done = anchor("import", folder, "--store", store)
    assert (done.code, done.err) == (0, "")
    assert done.out == f"dumps: 10 records of 10 tensors, step 3, from 10 files, in {store}\n"
    run = open_run("dumps", store)
    assert run.state == "closed"
    for name, value in values.items():
        found = run[f"{name}@value"].to_torch()[0]
        assert found.dtype == value.dtype
        assert torch.equal(found.view(torch.uint8) if found.itemsize == 1 else found,
                           value.view(torch.uint8) if value.itemsize == 1 else value)  # fmt: skip
    assert anchor("verify", "dumps", "--store", store).code == 0


def test_dicts_and_lists_are_taken_apart_and_gradients_come_last(tmp_path):
    folder = tmp_path / "dumps"
    for step in (2, 10):
        dump(folder, f"{step:05d}.pt", {"grad": {"fc1": torch.ones(2)}, "fc1": torch.ones(2),
                                        "layers": [torch.zeros(1), torch.ones(1)]})  # fmt: skip
    assert anchor("import", folder, "--store", tmp_path).code == 0
    found = [("fc1", "value"), ("layers.0", "value"), ("layers.1", "value"), ("fc1", "grad")]
    assert tensors(tmp_path) == found
    assert open_run("dumps", tmp_path)["fc1@grad"].columns["step"].tolist() == [2, 10]


def test_numpys_files_are_dumps_too(tmp_path):
    folder = tmp_path / "dumps"
    folder.mkdir()
    np.save(folder / "fc1_0.npy", np.arange(3, dtype=">f4"))
    np.savez(folder / "step_1.npz", fc1=np.arange(3.0), fc2=np.arange(2))
    assert anchor("import", folder, "--store", tmp_path).code == 0
    assert tensors(tmp_path) == [("fc1", "value"), ("fc2", "value")]
    assert open_run("dumps", tmp_path).series("fc1").at(step=0).array.tolist() == [0, 1, 2]


class Trap:
    """What a hostile pickle does when it is read."""

    def __reduce__(self):
        return (Path.touch, (Path("trapped"),))


def test_what_needs_pickle_or_is_no_dump_is_skipped_with_a_line_each(tmp_path, monkeypatch):
    folder = tmp_path / "dumps"
    monkeypatch.chdir(tmp_path)
    dump(folder, "step_0/good.pt", torch.ones(1))
    (folder / "a_trap.pt").write_bytes(pickle.dumps(Trap()))
    dump(folder, "b_trap.pth", {"x": torch.ones(1), "y": Trap()})
    np.save(folder / "c_trap.npy", np.array([Trap()], dtype=object), allow_pickle=True)
    whole = (folder / "step_0/good.pt").read_bytes()
    (folder / "d_torn.pt").write_bytes(whole[: len(whole) // 2])
    (folder / "e_empty.pt").touch()
    dump(folder, "f_sparse.pt", torch.eye(2).to_sparse())
    dump(folder, "g_numbers.pt", {"lr": 0.1})
    dump(folder, "h_meta.pt", torch.ones(2, device="meta"))
    (folder / "notes.txt").write_text("read me")
    (folder / ".hidden.pt").touch()
    done = anchor("import", folder, "--store", tmp_path, "--json")
    assert done.code == 3
    assert not (tmp_path / "trapped").exists()
    names = ["a_trap.pt", "b_trap.pth", "c_trap.npy", "d_torn.pt", "e_empty.pt", "f_sparse.pt",
             "g_numbers.pt", "h_meta.pt", "notes.txt"]  # fmt: skip
    assert sorted(one["file"] for one in done.json["skipped"]) == names
    assert sorted(line.split()[2].rstrip(":") for line in done.err.splitlines()) == names
    assert done.err.count("needs pickle") == 3
    assert tensors(tmp_path) == [("good", "value")]
    told = {name: done.json[name] for name in ("run", "files", "tensors", "records", "bytes")}
    assert told == {"run": "dumps", "files": 1, "tensors": 1, "records": 1, "bytes": 4}


def test_values_that_are_no_tensors_are_told_and_left_out(tmp_path):
    dump(tmp_path / "dumps", "step_1.pt", {"fc1": torch.ones(1), "lr": 0.1, "note": "x"})
    done = anchor("import", tmp_path / "dumps", "--store", tmp_path)
    assert done.code == 0
    assert done.err == "anchor: step_1.pt: 2 values left out, no tensors: lr, note\n"


def test_where_nothing_was_found_no_run_is_made_and_the_exit_code_is_2(tmp_path):
    folder = tmp_path / "dumps"
    folder.mkdir()
    (folder / "torn.pt").touch()
    for what in (folder, tmp_path / "absent", folder / "torn.pt"):
        done = anchor("import", what, "--store", tmp_path / "anchors")
        assert (done.code, done.out) == (2, "")
    assert not (tmp_path / "anchors").exists()


def test_a_run_that_is_there_stays_unless_told_otherwise(tmp_path):
    folder = tmp_path / "my dumps!"
    dump(folder, "fc1.pt", torch.ones(1))
    first = anchor("import", folder, "--store", tmp_path, "--json")
    assert first.json["run"] == "my-dumps-"
    again = anchor("import", folder, "--store", tmp_path)
    assert (again.code, again.err.count("\n")) == (2, 1)
    assert "give --overwrite, or another --run NAME" in again.err
    dump(folder, "fc1.pt", torch.zeros(1))
    assert anchor("import", folder, "--store", tmp_path, "--overwrite").code == 0
    assert open_run("my-dumps-", tmp_path)["fc1@value"].values().tolist() == [[0]]


def test_ranks_become_ranks_and_a_place_that_comes_twice_is_two_calls(tmp_path):
    folder = tmp_path / "dumps"
    for rank in (0, 1):
        dump(folder, f"rank{rank}/step_0/a/b.pt", torch.full((1,), rank))
        dump(folder, f"rank{rank}/step_0/a.b.pt", torch.full((1,), 9))
    assert anchor("import", folder, "--store", tmp_path).code == 0
    run = open_run("dumps", tmp_path)
    assert run.ranks == [0, 1]
    assert run.series("a.b", rank=1).columns["call"].tolist() == [0, 1]
    shutil.rmtree(folder / "rank1")
    again = anchor("import", folder, "--store", tmp_path, "--overwrite")
    assert again.err == (
        "anchor: dumps keeps its earlier records of rank 1: these dumps have none of it\n"
    )


def test_hostile_names_come_back_exactly_and_are_escaped_where_shown(tmp_path):
    folder = tmp_path / "dumps"
    dump(folder, "step_0.pt", {HOSTILE: torch.ones(1), "bad\udc80": torch.ones(1)})
    done = anchor("import", folder, "--store", tmp_path)
    assert done.code == 2  # an unpaired surrogate names nothing: the file is skipped
    assert all(line.isprintable() for line in done.err.splitlines())
    dump(folder, "step_0.pt", {HOSTILE: torch.ones(1)})
    assert anchor("import", folder, "--store", tmp_path).code == 0
    assert [name for name, _ in tensors(tmp_path)] == [HOSTILE]


def test_a_collector_is_no_place_to_import_into(tmp_path):
    dump(tmp_path / "dumps", "fc1.pt", torch.ones(1))
    done = anchor("import", tmp_path / "dumps", "--store", "grpc://127.0.0.1:1")
    assert done.code == 2
    assert "anchor push RUN" in done.err


def test_two_folders_of_dumps_are_compared_and_the_first_difference_is_named(tmp_path):
    torch.manual_seed(0)
    for name in ("eager", "other"):
        x = torch.linspace(-1, 1, 64)
        for step in range(3):
            fc1 = torch.tanh(x * (step + 1))
            if name == "other" and step >= 1:
                fc1[5] += 1e-3
            dump(tmp_path / name, f"step_{step}/fc1.pt", fc1)
            dump(tmp_path / name, f"step_{step}/fc2.pt", fc1.flip(0) * 3)
            dump(tmp_path / name, f"step_{step}/fc1.grad.pt", 1 - fc1 * fc1)
        assert anchor("import", tmp_path / name, "--store", tmp_path).code == 0
    done = anchor("compare", "eager", "other", "--store", tmp_path, "--json")
    assert done.code == 1
    # Nobody knows what a dump was computed from: whatever differs first began to differ there.
    assert done.json["verdict"] == "suspect"
    (origin,) = done.json["origins"]
    assert (origin["name"], origin["step"], origin["class"]) == ("fc1", 1, "starts_unequal")
    assert origin["error_eps"] > 1000
    first = {name: done.json["first"][name] for name in ("step", "name", "kind")}
    assert first == {"step": 1, "name": "fc1", "kind": "value"}
    assert done.json["first"]["identical_before"] == 3
    assert done.json["counts"] == {
        "matched": 9, "identical": 3, "differing": 6, "only_a": 0, "only_b": 0,
    }  # fmt: skip
    assert done.json["config_diff"] == {}
    same = anchor("compare", "eager", "eager", "--store", tmp_path, "--json")
    assert (same.code, same.json["verdict"]) == (0, "identical")


@pytest.mark.slow
@pytest.mark.parametrize("line", [one for one in EXAMPLES.splitlines() if " anchor " in one])
def test_the_examples_of_its_help_run(tmp_path, line):
    dump(tmp_path, "dumps/eager/fc1_0.pt", torch.ones(1))
    dump(tmp_path, "dumps/fc2-s7.pt", torch.ones(1))
    _, *arguments = shlex.split(line)
    done = subprocess.run(
        [warm_python(), "-W", "error", "-m", "anchor_cli", *arguments],
        cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    if "--run" in arguments:
        assert done.returncode == 3  # the pattern leaves out what is below eager
        assert tensors(tmp_path / "anchors", "a") == [("fc2", "value")]
    else:
        assert (done.returncode, done.stderr) == (0, "")
        assert tensors(tmp_path / "anchors", "eager") == [("fc1", "value")]


def bombs(folder: Path) -> dict[str, str]:
    """Files that each used to end the whole import, or never let it end; why each is skipped."""
    dump(folder, "step_0/stride.pt", torch.zeros(1).expand(1 << 40))
    dump(folder, "step_0/shared.pt", [torch.zeros(1 << 20).expand(64, 1 << 20)] * 4)
    dump(folder, "step_0/dims.pt", torch.zeros((1,) * 70))
    again: list[object] = [torch.zeros(1)]
    for _ in range(30):
        again = [again] * 10
    dump(folder, "step_0/laughs.pt", again)
    np.savez_compressed(folder / "step_0/zeros.npz", a=np.zeros(300 << 20, np.uint8))
    with (folder / "step_0/short.npy").open("wb") as file:
        np.lib.format.write_array_header_1_0(
            file, {"descr": "<f4", "fortran_order": False, "shape": (1 << 44,)}
        )
    os.mkfifo(folder / "step_0/pipe.pt")
    (folder / "step_0/endless.npy").symlink_to("/dev/zero")
    (folder / "step_0/nowhere.npy").symlink_to("nowhere")
    much = "holds tensors of more than 16 times its size"
    return {
        "stride.pt": much,
        "shared.pt": much,
        "zeros.npz": much,
        "dims.pt": "holds what cannot be stored",
        "laughs.pt": "holds more than 65,536 values",
        "short.npy": "is no dump that can be read",
        "pipe.pt": "is a pipe or a device, no file",
        "endless.npy": "is a pipe or a device, no file",
        "nowhere.npy": "cannot be read: No such file",
    }


@pytest.mark.slow
def test_a_file_that_is_a_trap_is_skipped_in_a_line_and_the_others_are_imported(tmp_path):
    folder = tmp_path / "dumps"
    dump(folder, "step_0/fc1.pt", torch.arange(4.0))
    traps = bombs(folder)
    with Limited() as limited:
        done = limited.anchor("import", folder, "--store", tmp_path, "--json")
    skipped = {Path(one["file"]).name: one["why"] for one in done.json["skipped"]}
    assert {name for name, why in traps.items() if why not in skipped.get(name, "")} == set(), done
    assert (done.code, len(done.err.splitlines())) == (3, len(traps)), done
    assert open_run("dumps", tmp_path)["fc1"].values().tolist() == [[0.0, 1.0, 2.0, 3.0]]


@pytest.mark.slow
def test_a_dump_that_is_well_compressed_is_imported(tmp_path):
    (tmp_path / "dumps").mkdir()
    np.savez_compressed(tmp_path / "dumps/mask_3.npz", mask=np.zeros(1 << 22, np.float32))
    assert anchor("import", tmp_path / "dumps", "--store", tmp_path).code == 0
    assert open_run("dumps", tmp_path)["mask.mask"].shapes == [(1 << 22,)]
