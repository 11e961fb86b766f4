"""Did you mean."""

import pytest

from anchorlib.names import near, suggest


@pytest.mark.parametrize(
    ("text", "choices", "found"),
    [
        ("fc1.weigth", ["fc1.weight", "fc1.bias"], ["fc1.weight"]),
        ("bsae", ["same", "base"], ["base"]),
        ("FC1", ["fc1", "fc2"], ["fc1"]),
        ("fc1", ["model.fc1", "fc2", "a.b.fc1"], ["a.b.fc1", "model.fc1"]),
        ("module.fc1", ["fc1", "fc2"], ["fc1"]),
        ("w", ["a.w", "b.w", "c.w", "d.w"], ["a.w", "b.w", "c.w"]),
        ("zzz", ["fc1"], []),
        ("", ["fc1", ""], [""]),
        ("fc1", [], []),
    ],
)
def test_what_is_near(text, choices, found):
    assert near(text, choices) == found


def test_a_suggestion_is_the_tail_of_a_message():
    assert suggest("run", ["run1"]) == "; did you mean 'run1'?"
    assert suggest("w", ["a.w", "b.w", "c.w"]) == "; did you mean 'a.w', 'b.w' or 'c.w'?"
    assert suggest("w", []) == ""


def test_the_nearest_of_thousands_is_found():
    choices = [f"encoder.layer.{layer}.attention.{part}.weight" for layer in range(2000)
               for part in ("query", "key", "value")]  # fmt: skip
    assert near("encoder.layer.1234.atention.query.weight", choices) == [
        "encoder.layer.1234.attention.query.weight"
    ]
