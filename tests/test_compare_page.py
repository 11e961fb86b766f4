"""docs/compare.md and the readme's part of it: the commands run, and say what the page says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from anchorlib.diagnosis.sizes import FILLED
from tests.warm import warm_python

# A door holds the functions, some of which bear the name of their file.
covering, envelope, turns, jumps, bounds, made_by_code, surroundings, verdict, *more = (
    import_module(f"anchorlib.diagnosis.judgement.{name}")
    for name in (
        *("noise.covering", "noise.envelope", "noise.turns", "rounding.jumps"),
        *("rounding.bounds", "made_by_code", "surroundings", "verdict"),
        *("changes.decays", "changes.optimizer_steps"),
        *("rounding.moving_averages", "rounding.moments"),
        *("noise.few_elements", "origins.learning", "rounding.row_factors", "computed_rows"),
    )
)

decays, steps, averages, moments, few, learning, row_factors, computed_rows = more

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "compare.md").read_text(encoding="utf-8")
README = (ROOT / "README.md").read_text(encoding="utf-8")
PART = README.partition("## Find where two runs part\n")[2].partition("\n## ")[0]


def sessions(text):
    """Each command of the console blocks, without its comment, and the output under it."""
    blocks = re.findall(r"```console\n(.*?)```", text, re.DOTALL)
    parts = [part for block in blocks for part in f"\n{block}".split("\n$ ")[1:]]
    pairs = [part.partition("\n") for part in parts]
    return [(command.partition("  #")[0].strip(), said.rstrip()) for command, _, said in pairs]


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """What each command of the page answered, run in its order."""
    folder = tmp_path_factory.mktemp("page")
    [program] = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert program.startswith("# train.py\n")
    (folder / "train.py").write_text(program, encoding="utf-8")
    env = {key: value for key, value in os.environ.items() if not key.startswith("ANCHOR_")}
    folders = [Path(warm_python()).parent, Path(sys.executable).parent, env["PATH"]]
    env["PATH"] = os.pathsep.join(map(str, folders))
    return {
        command: subprocess.run(
            ["bash", "-c", command],
            cwd=folder, env=env, capture_output=True, text=True, timeout=300, check=False,
        )
        for command, _ in sessions(PAGE)
    }  # fmt: skip


def told(text):
    """What does not depend on a processor's last bit: verdict, place, operation and class."""
    found = [
        re.search(pattern, text, re.MULTILINE)
        for pattern in (
            r"^[A-Z]+(?=  The runs)",
            r"^FIRST DIVERGENCE  step \d+ pass \d+  \S+",
            r"^  step \d+ pass \d+  \S+: .*",
            r"^    \w+ of \S+ \(equal\)",
            r"^NEXT  .*",
        )
    ]
    return [one[0] for one in found if one]


@pytest.mark.long
def test_every_command_of_the_page_runs_and_says_what_the_page_says(ran):
    assert len(ran) == len(sessions(PAGE)) >= 6
    for command, said in sessions(PAGE):
        done = ran[command]
        compares = command.startswith("anchor compare")
        assert done.returncode == (compares and "\nEXPECTED  " not in said), (command, done.stderr)
        assert not compares or told(said)
        for line in told(said):
            assert line in done.stdout


@pytest.mark.long
def test_the_readmes_commands_are_the_pages(ran):
    commands = [command for command, _ in sessions(PART)]
    assert len(commands) == 5
    assert set(commands) <= set(ran)
    sentence = " ".join(PART.partition("`EXPECTED  ")[2].partition("`")[0].split())
    answer = " ".join(ran[commands[-1]].stdout.split())
    for clause in re.sub(r"by [\d.]+ eps", "", sentence).split("; …; "):
        for words in filter(None, clause.split("  ")):
            assert words.strip(" .") in re.sub(r"by [\d.]+ eps", "", answer)


@pytest.mark.parametrize(
    ("row", "value"),
    [
        ("rounding, float32 and float64", f"{bounds.TOLERANCE:g} eps"),
        ("rounding, half precision and less", f"{bounds.TOLERANCE_LOW:g} eps"),
        ("… a kernel of a recurrent layer", f"{bounds.STEP_OPERATIONS} operations"),
        ("… a kernel of a recurrent layer", f"up to {verdict.MOST_TIMES:g} times"),
        (
            "… rows that are the other run's times factors on both sides of 1",
            f"{row_factors.FACTORS} of them at least",
        ),
        (
            "… rows that are the other run's times factors on both sides of 1",
            f"{row_factors.SHARE:.0%}".replace("%", " %"),
        ),
        (
            "… Adam's averages where one run alone has a fused optimizer, on an accelerator",
            f"{averages.MARGIN:g} times",
        ),
        ("… noise that lies in few elements", f"{few.SHARE:.0%}".replace("%", " %")),
        ("… noise that lies in few elements", f"at most {few.LARGEST:g}"),
        ("what is read without a record, behind values that differ", f"{learning.LIMIT_LOW:g} eps"),
        (
            "what is read without a record, behind values that differ",
            f"{surroundings.NEARLY:g} times the usual error",
        ),
        (
            "what is read without a record, behind values that differ",
            f"at most {computed_rows.DRIFT:g}",
        ),
        ("what a mask fills", "−10⁹ or less" if FILLED == -1e9 else "?"),
        ("moments that a norm hides", "or half an eps" if moments.LEAST_LOW == 0.5 else "?"),
        ("… over long sums and several operations", f"{bounds.LONG_SUM:,}"),
        ("… over long sums and several operations", f"{bounds.HIDDEN_OPERATIONS} operations"),
        ("the least noise", f"{envelope.FLOOR:g} eps"),
        ("drift inside the noise", f"up to {verdict.COVERED:g} "),
        (
            f"… where the median error is {verdict.FEW:g} eps of float32 at most",
            f"up to {verdict.COVERED_FEW:g} ",
        ),
        ("… in the first two steps below float32", f"up to {verdict.COVERED_LOW:g} "),
        ("records that are scored", f"{envelope.ELEMENTS} elements"),
        ("zero by theory", f"at least {covering.NOISY:g} times"),
        ("unrelated", f"from {surroundings.UNRELATED:g}"),
        ("a leap", f"{jumps.TIMES:,g} times the largest error before it"),
        ("a leap", f"nothing of {jumps.LOW:g} eps of a format coarser than float32"),
        ("a step that Adam makes of nothing", f"as small as {turns.NEAR:g} times"),
        ("written after the optimizer's step", f"{steps.BEYOND:g} eps, and {steps.LARGER:g} times"),
        ("another weight decay of one parameter", f"to {decays.ROUNDINGS:g} eps of it"),
        ("another weight decay of one parameter", f"at least {decays.LEAST:g} times that"),
        ("another weight decay of one parameter", f"within {decays.NEAR:.0%}".replace("%", " %")),
        ("code, not other random numbers", f"a cosine of {made_by_code.SIGMAS:g}/√n"),
    ],
)
def test_the_pages_thresholds_are_the_codes(row, value):
    (line,) = [one for one in PAGE.splitlines() if one.startswith(f"| {row} |")]
    assert value in line
    assert verdict.FIRST_STEPS == 2
    assert envelope.SATURATED == 0.1
    assert (jumps.SHARE, turns.UNSTEADY) == (1 / 100, 1 / 10)


def test_the_page_says_how_far_several_roundings_in_a_row_go():
    words = f"A record that is up to {learning.LIMIT:g} eps of float32 apart is rounding if"
    assert words in PAGE
