"""What a reader is told about a function that can't be tried, or that raises."""

import pytest

from pa_tutorial.exercises.blank import all_blanks
from pa_tutorial.exercises.blank_verdict import verdict
from tests.exercises.blank_cells import function_of, said

WARP_MAX = all_blanks()["warp_max"]
HEAD = "@cuda.jit(device=True)\ndef warp_max(value, mask, smallest_mask):\n"
# What is changed in warp_max, and what is said of it.
SAID = {
    "no device function": ("(device=True)", "", "@cuda.jit(device=True)"),
    "another signature": (", smallest_mask):", "):", "it must take (value, mask,"),
    "no return": ("return value", "pass", "`return …`, is missing"),
    "unknown name": ("value, mask)", "value, maks)", "warp_max uses maks: the kernel"),
    "raise": (HEAD, f"{HEAD}    raise value\n", "not know raise value\n    line 3 of"),
    "a tuple": ("return value", "return value, mask", "return one number?"),
    "endless": ("mask //= 2", "mask //= 1", "no end: line 3: while mask >="),
}


@pytest.mark.parametrize(("old", "new", "says"), SAID.values(), ids=SAID)
def test_a_function_that_cannot_run_is_told_why(old: str, new: str, says: str) -> None:
    words = said("warp_max", (old, new))
    assert says in words
    ours = "ListComp", "_Intrinsic", "<cell", "..., ...", "/tmp", "Error"
    assert not [word for word in ours if word in words]


def test_what_is_no_function_or_has_no_source_is_named() -> None:
    """IPython keeps no text of a cell that begins with %%time."""
    assert verdict(WARP_MAX, None) == "warp_max is None; it must be a function"
    names: dict[str, object] = {}
    exec(compile(f"from numba import cuda\n{WARP_MAX.source}", "<timed exec>", "exec"), names)
    assert verdict(WARP_MAX, names["warp_max"]).startswith("warp_max has no source")


def test_a_mark_or_a_variable_that_is_missing_is_named() -> None:
    assert "mark: rows" in said("paged_attention_v1", ("    # mark: rows\n", ""))
    blank = all_blanks()["reduce_partitions"]
    renamed = (" max_logit = ", " largest = "), (" max_logit, num", " largest, num")
    assert "\n  max_logit has no value here\n" in said(blank.name, *renamed)
    head = blank.source.partition("    thread_idx =")[0]
    words = verdict(blank, function_of(blank, f"{head}    return\n"))
    assert "\n  reduce_partitions has no variable 'global_exp_sum'\n" in words
    assert "keep its name." in words


@pytest.mark.parametrize(
    ("name", "line"),
    [("load_key", "thread_group_offset ="), ("write_rows", "lane ="), ("merged_output", "inv_sum")],
)
def test_a_signed_number_of_the_thread_is_refused(name: str, line: str) -> None:
    """One of them among the indices costs v1 its registers, whatever else is right."""
    edit = f"    {line}", f"    thread_idx = cuda.threadIdx.x\n    {line}"
    assert "Use thread_idx" in said(name, edit)
