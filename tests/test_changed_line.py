"""with_changed_line: what it finds, and what it refuses."""

import pytest

from pa_tutorial.exercises.changed_line import with_changed_line

KERNEL = """
def kernel(a):
    wait()
    # mark: end
    wait()  # for a + 2
    return a[
        0  # the first one
    ]
"""


@pytest.mark.parametrize(
    ("place", "count"),
    [
        ({"old": "wait()"}, 2),
        ({"old": "wait()", "function": "other"}, 0),
        ({"old": "wait()", "mark": "other"}, 0),
        ({"old": "a + 2"}, 0),  # in a comment
        ({"old": "ait()"}, 0),  # part of a word
    ],
)
def test_a_line_that_is_not_there_once_is_refused(place: dict[str, str], count: int) -> None:
    message = rf"`old` must be there once, it is there {count} times; old: {place['old'][0]}"
    with pytest.raises(ValueError, match=message):
        with_changed_line(KERNEL, new="x", **place)


def test_a_split_line_is_found_and_new_lines_are_indented_like_it() -> None:
    changed = with_changed_line(KERNEL, "return a[0]", "if a:\n    return a[1]", function="kernel")
    assert changed.endswith("  # for a + 2\n    if a:\n        return a[1]\n")


def test_a_mark_tells_equal_lines_apart() -> None:
    changed = with_changed_line(KERNEL, "wait()", "pass", mark="end")
    assert changed == KERNEL.replace("wait()  #", "pass  #")
