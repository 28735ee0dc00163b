"""Tables, counts and sizes as the commands print them."""

from __future__ import annotations

import pytest

from warcore.cli.output import aligned, counted, size


def test_columns_are_as_wide_as_their_widest_cell_and_lines_end_with_text():
    assert aligned([("A", "B"), ("long", ""), ("x", "y")]) == ["A     B", "long", "x     y"]


@pytest.mark.parametrize(("count", "text"), [(0, "0 steps"), (1, "1 step"), (2, "2 steps")])
def test_one_of_a_thing_is_singular(count, text):
    assert counted(count, "step") == text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 kB"),
        (20_416, "20 kB"),
        (999_499, "999 kB"),
        (999_500, "1.0 MB"),
        (9_949_999, "9.9 MB"),
        (9_950_000, "10 MB"),
        (123_456_789, "123 MB"),
    ],
)
def test_a_size_has_the_digits_that_tell_something(count, text):
    assert size(count) == text
