"""A reader's functions are tried together: theirs so far, ours for the rest."""

from collections.abc import Callable

import IPython
import pytest

from pa_tutorial.exercises import attempt
from pa_tutorial.exercises.blank import all_blanks
from pa_tutorial.exercises.blank_verdict import verdict
from pa_tutorial.exercises.ours import is_ours
from pa_tutorial.exercises.together import others_of
from pa_tutorial.kernels import cuda_launch, v1
from pa_tutorial.viz.accesses import draw_goal
from tests.exercises.blank_cells import function_of
from tests.simt.microscope.pictures import require_readable, texts_of

CALL = "    if thread_idx < WARP_SIZE:\n        write_rows(out"


def changed(name: str, right: str = "", wrong: str = "", **others: Callable) -> Callable:
    """The answer to a blank, with one change, in a notebook with these other functions."""
    blank = all_blanks()[name]
    assert right in blank.source
    return function_of(blank, blank.source.replace(right, wrong), **others)


def test_a_guard_may_be_inside_what_the_kernel_calls() -> None:
    guarded = changed("write_rows", "if row_idx", "if thread_idx < WARP_SIZE and row_idx")
    blank = all_blanks()["paged_attention_v1"]
    unguarded = CALL, "    write_rows(out"
    assert verdict(blank, changed(blank.name, *unguarded, write_rows=guarded)) == ""
    assert "race" in verdict(blank, changed(blank.name, *unguarded))


def test_what_is_right_by_itself_names_the_function_that_it_fails_with() -> None:
    others = {
        "add_values": changed("add_values", "+= dot", "= dot"),
        "load_key": changed("load_key"),
        "write_rows": changed("write_rows"),
    }
    words = verdict(all_blanks()["sum_values"], changed("sum_values", **others))
    assert words.startswith("right by itself; with your `add_values`, not yet. Case 2 of 12, ")
    assert "the sum of V of element 0" in words


def test_a_mistake_of_its_own_is_told_without_the_others() -> None:
    others = {"add_values": changed("add_values", "+= dot", "= dot")}
    wrong = changed("sum_values", "index_t(block_table[block_idx])", "index_t(block_idx)", **others)
    assert verdict(all_blanks()["sum_values"], wrong).startswith("not yet. Case 1 of 12, ")


def test_another_functions_transactions_are_not_blamed_on_a_blank() -> None:
    by_element = changed("load_key")
    with_theirs = changed("load_query_by_vec", load_key=by_element)
    assert verdict(all_blanks()["load_query_by_vec"], with_theirs) == ""


def test_an_element_load_does_not_take_the_place_of_a_vec_load() -> None:
    """In the notebook of v2, load_key is that of v1_vector, and fill_logits that of v1."""
    others = {name: changed(name) for name in ("fill_logits", "load_key_by_vec")}
    others["load_key"] = others.pop("load_key_by_vec")
    function = changed("reduce_partitions", **others)
    assert others_of(function, "v2") == {
        "v1": (others["fill_logits"],),
        "v1_vector": (others["load_key"],),
    }


def test_ours_and_unfinished_ones_do_not_take_part() -> None:
    stub = function_of(all_blanks()["add_values"], all_blanks()["add_values"].stub)
    function = changed("sum_values", add_values=stub, warp_sum=v1.warp_sum, load_key=None)
    assert others_of(function, "v1") == {}


@pytest.mark.parametrize(
    "text",
    [
        # no Python from line 2 on
        "load_key = cuda.jit(\n    device=True)(lambda k: (k +\n    k))\n",
        "load_key = cuda.jit(lambda k: k)\n",
        "@cuda.jit(device=True)\ndef other(k):\n    return k\n\n\nload_key = other\n",
        "class load_key:\n    py_func = 3\n",
    ],
)
def test_what_has_another_name_does_not_take_part(text: str) -> None:
    """What is wrong with it is told where it is attempted."""
    blank = all_blanks()["qk_dot"]
    assert verdict(blank, function_of(blank, text + blank.source)) == ""


def test_together_takes_one_launch_per_case(monkeypatch: pytest.MonkeyPatch) -> None:
    launches: list[object] = []
    real = cuda_launch.launch
    monkeypatch.setattr(cuda_launch, "launch", lambda *g, **o: launches.append(g) or real(*g, **o))
    blank = all_blanks()["block_max"]
    assert verdict(blank, changed("block_max", warp_max=changed("warp_max"))) == ""
    assert len(launches) == len(blank.trials())


def test_a_size_that_vllm_lacks_is_named(capsys: pytest.CaptureFixture) -> None:
    wrong = function_of(all_blanks()["qk_dot"], all_blanks()["qk_dot"].stub, HEAD_SIZE=100)
    assert is_ours(attempt("qk_dot", wrong))
    assert "HEAD_SIZE is 100; it must be one of 32, 64," in capsys.readouterr().out


def test_of_what_a_blank_prints_a_few_lines_are_shown(capsys: pytest.CaptureFixture) -> None:
    loud = changed("warp_max", "    return value", "    print(mask)\n    return value")
    assert attempt("warp_max", loud) is loud
    first, *others = capsys.readouterr().out.splitlines()
    assert first == "2"
    assert len(others) == 7  # and the verdict, and par
    assert others[4].startswith("… and ")


def test_a_name_that_attempt_does_not_know_takes_two_lines() -> None:
    with pytest.raises(ValueError, match="did you mean 'load_key'") as caught:
        attempt("load_ky", changed("load_key"))
    assert len(caught.value._render_traceback_()) == 2


TITLES = {
    "skips empty slots": (
        *("add_values", "v_vec[j] = to_float(v_block[row_idx, physical_block_offset + j])"),
        "v_vec[j] = to_float(v_block[row_idx, physical_block_offset + j]) "
        "if first_token + physical_block_offset + j < num_tokens else float32(0)",
        "Your threads read the right elements of v_cache",
    ),
    "adds empty slots": (
        *("add_values", "if first_token + BLOCK_SIZE > num_tokens:", "if False:"),
        "In these lines, your threads read the right elements of v_cache",
    ),
    "another thread's element": (
        *("write_output", "range(cuda.threadIdx.x,", "range(127 - cuda.threadIdx.x,"),
        "352 of 352 elements of v_cache are read by other threads than in ours, which is right too",
    ),
    "slot 0 is skipped": (
        *("write_keys", "slot < 0", "slot <= 0"),
        "32 of 64 elements of k_cache are written by the wrong threads, or by none",
    ),
    "another sequence": (
        *("write_output", "range(seq_len)", "range(min(seq_len, 41))"),
        "1,856 of 4,480 elements of v_cache are read by the wrong threads, or by none",
    ),
}


@pytest.mark.parametrize(("name", "right", "wrong", "title"), TITLES.values(), ids=TITLES)
def test_the_picture_says_what_the_words_say(
    name: str, right: str, wrong: str, title: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[object] = []
    monkeypatch.setattr(IPython, "get_ipython", lambda: "a notebook")
    monkeypatch.setattr(IPython.display, "display", shown.append)
    attempt(name, changed(name, right, wrong))
    assert shown[0].figure.get_suptitle() == title
    require_readable(shown[0].figure)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("name", "axes"), [("load_key", "piece, offset, place"), ("load_query", "the index")]
)
def test_a_goal_names_the_axes_and_can_be_read(name: str, axes: str) -> None:
    blank = all_blanks()[name]
    kind, array = blank.picture.split()
    figure = draw_goal(blank.trials()[0].trace(None).only(array=array, kind=kind), blank.picture)
    require_readable(figure)
    assert axes in texts_of(figure)[-1]
    assert ("in the first lines" in figure.get_suptitle()) == (array == "k_cache")
