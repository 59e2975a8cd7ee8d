"""What a reader is told about a function that can't be tried, or that raises."""

import ast
import re
from itertools import count

import IPython
import pytest

from pa_tutorial.exercises import attempt
from pa_tutorial.exercises.blank import all_blanks
from pa_tutorial.exercises.blank_verdict import verdict
from pa_tutorial.exercises.exercise import compiled
from pa_tutorial.kernels import cuda_launch
from tests.exercises.blank_cells import function_of

HEAD = "@cuda.jit(device=True)\ndef warp_max(value, mask, smallest_mask):\n"
RIGHT = all_blanks()["warp_max"].source
NUMBERS = count(1)
SAID = {
    "another name": (RIGHT.replace("warp_max", "largest"), "it must be called warp_max"),
    "no device function": (RIGHT.replace("(device=True)", ""), "@cuda.jit(device=True)"),
    "no decorator": (RIGHT.replace("@cuda.jit(device=True)\n", ""), "put its @cuda.jit line"),
    "another signature": (RIGHT.replace(", smallest_mask):", "):"), "it must take (value, mask,"),
    "no return": (RIGHT.replace("return value", "pass"), "`return …`, is missing"),
    "unknown name": (
        RIGHT.replace("value, mask)", "value, maks)"),
        "warp_max uses maks: the kernel",
    ),
    "unknown intrinsic": (RIGHT.replace("shfl_xor_sync", "shuffle"), "not know cuda.shuffle"),
    "raise": (
        f"{HEAD}    raise value\n",
        "not know raise value\n    line 3 of",
    ),
    "a list": (f"{HEAD}    return [value][0]\n", "a list such as [value]\n    line 3 of warp_max"),
    "no call": (RIGHT.replace("(ALL_LANES, value, mask)", ""), "shfl_xor_sync isn't called"),
    "a tuple": (RIGHT.replace("return value", "return value, mask"), "return one number?"),
    "ignores mask": (
        RIGHT.replace("    while", "    mask = 16\n    while"),
        "the result of lane 0",
    ),
    "endless": (RIGHT.replace("mask //= 2", "mask //= 1"), "no end: line 3: while mask >="),
    "endless in its own loop": (
        f"{HEAD}    while True:\n        mask = 1\n    return value\n",
        "no end: line 3: while True:",
    ),
}


@pytest.mark.parametrize(("text", "says"), SAID.values(), ids=SAID)
def test_a_function_that_cannot_run_is_told_why(text: str, says: str) -> None:
    names: dict[str, object] = {}
    exec(compiled(f"from numba import cuda\n{text}", f"<verdict {next(NUMBERS)}>"), names)
    function = next(value for name, value in names.items() if name in ("warp_max", "largest"))
    words = verdict(all_blanks()["warp_max"], function)
    assert says in words
    assert not any(word in words for word in ("ListComp", "_Intrinsic", "<verdict", "..., ..."))
    assert "/tmp" not in words  # no line of our own files
    assert "Error" not in words


def test_a_mark_that_is_missing_is_named() -> None:
    blank = all_blanks()["paged_attention_v1"]
    function = function_of(blank, blank.source.replace("    # mark: rows\n", ""))
    assert "mark: rows" in verdict(blank, function)


def test_a_variable_with_another_name_is_named() -> None:
    blank = all_blanks()["reduce_partitions"]
    text = re.sub(r"\bmax_logit\b", "largest", blank.source)
    assert "\n  max_logit has no value here\n" in verdict(blank, function_of(blank, text))
    words = verdict(
        blank, function_of(blank, text.partition("    thread_idx =")[0] + "    return\n")
    )
    assert "\n  reduce_partitions has no variable 'global_exp_sum'\n" in words
    assert "The check looks at it at a mark: keep its name." in words


@pytest.mark.parametrize("name", ["load_key", "write_rows", "merged_output"])
def test_a_signed_number_of_the_thread_is_refused(name: str) -> None:
    """One of them among the indices costs v1 its registers, whatever else is right."""
    blank = all_blanks()[name]
    lines = blank.source.splitlines()
    first = ast.parse(blank.source).body[0].body[0].lineno
    lines.insert(first - 1, "    thread_idx = cuda.threadIdx.x")
    signed = "\n".join(lines) + "\n"
    assert "Use thread_idx" in verdict(blank, function_of(blank, signed))


def test_a_readers_simpler_mask_is_right() -> None:
    """Each element masked by itself, where ours asks first whether it is the last block."""
    blank = all_blanks()["add_values"]
    simpler = blank.source.replace("if first_token + BLOCK_SIZE > num_tokens:", "if True:")
    assert simpler != blank.source
    assert verdict(blank, function_of(blank, simpler)) == ""


def test_a_verdict_takes_one_launch_per_case(monkeypatch: pytest.MonkeyPatch) -> None:
    """And two more where par is required. A reader waits for each launch."""
    launches: list[object] = []
    real = cuda_launch.launch

    def noted(*given: object, **options: object) -> object:
        launches.append(given)
        return real(*given, **options)

    monkeypatch.setattr(cuda_launch, "launch", noted)
    blank = all_blanks()["load_key_by_vec"]
    right = function_of(blank, blank.source)
    verdict(blank, right)  # now it is known what ours takes
    launches.clear()
    assert verdict(blank, right) == ""
    assert len(launches) == 2 + sum(trial.problem is not None for trial in blank.trials())


def test_what_is_no_function_is_named() -> None:
    assert verdict(all_blanks()["warp_max"], None) == "warp_max is None; it must be a function"


def test_a_cell_whose_text_is_not_kept_is_named() -> None:
    """As IPython runs one that begins with %%time."""
    names: dict[str, object] = {}
    exec(compile(f"from numba import cuda\n{RIGHT}", "<timed exec>", "exec"), names)
    words = verdict(all_blanks()["warp_max"], names["warp_max"])
    assert words.startswith("warp_max has no source; it must be a function of a file or of a cell")


def test_a_blank_in_plain_python_is_stopped_too() -> None:
    blank = all_blanks()["group_sizes"]
    first, *body = blank.source.strip().splitlines(keepends=True)
    function = function_of(blank, "".join([first, "    while True:\n        pass\n", *body]))
    assert "1 second and no end: line 2: while True:" in verdict(blank, function)


@pytest.mark.parametrize(
    ("name", "right", "wrong"),
    [("write_keys", "offset, d % X]", "0, d % X]"), ("load_key", "j * THREAD_G", "0 * THREAD_G")],
)
@pytest.mark.parametrize("ending", ["", "    ...\n"], ids=["finished", "unfinished"])
def test_a_readers_accesses_are_drawn_beside_the_right_ones(
    name: str, right: str, wrong: str, ending: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[object] = []
    monkeypatch.setattr(IPython, "get_ipython", lambda: "a notebook")
    monkeypatch.setattr(IPython.display, "display", shown.append)
    blank = all_blanks()[name]
    for text in (blank.source, blank.source.replace(right, wrong)):
        attempt(name, function_of(blank, text + ending))
    titles = [one.figure.get_suptitle() for one in shown]
    assert "our threads " in titles[0]
    assert titles[1].endswith("by the wrong threads, or by none")
