"""A reader's functions are tried together: theirs so far, ours for the rest."""

import pytest

from pa_tutorial.exercises import attempt
from pa_tutorial.exercises.blank import all_blanks
from pa_tutorial.exercises.ours import is_ours
from pa_tutorial.exercises.together import others_of
from pa_tutorial.kernels import v1
from pa_tutorial.viz.accesses import draw_goal
from tests.exercises.blank_cells import changed, function_of, said
from tests.simt.microscope.pictures import require_readable, texts_of

UNGUARDED = ("    if thread_idx < WARP_SIZE:\n        write_rows(out", "    write_rows(out")
BAD_VALUES = changed("add_values", ("+= dot", "= dot"))


def test_a_guard_may_be_inside_what_the_kernel_calls() -> None:
    guarded = changed("write_rows", ("if row_idx", "if thread_idx < WARP_SIZE and row_idx"))
    assert said("paged_attention_v1", UNGUARDED, write_rows=guarded) == ""
    assert "race" in said("paged_attention_v1", UNGUARDED)


def test_what_is_right_by_itself_names_the_function_that_it_fails_with() -> None:
    others = {name: changed(name) for name in ("load_key", "write_rows")}
    words = said("sum_values", add_values=BAD_VALUES, **others)
    assert words.startswith("right by itself; with your `add_values`, not yet. Case 2 of 12, ")


def test_a_mistake_of_its_own_is_told_without_the_others() -> None:
    wrong = "index_t(block_table[block_idx])", "index_t(block_idx)"
    assert said("sum_values", wrong, add_values=BAD_VALUES).startswith("not yet. Case 1 of 12, ")


def test_another_functions_transactions_are_not_blamed_on_a_blank() -> None:
    assert said("load_query_by_vec", load_key=changed("load_key")) == ""


def test_only_finished_functions_of_the_readers_take_part_each_in_the_file_that_defines_it() -> (
    None
):
    """In the notebook of v2, load_key is that of v1_vector, and fill_logits that of v1."""
    logits, key = changed("fill_logits"), changed("load_key_by_vec")
    stub = function_of(all_blanks()["add_values"], all_blanks()["add_values"].stub)
    other = changed("write_rows")  # under a name that isn't its own
    not_theirs = {"add_values": stub, "warp_sum": v1.warp_sum, "warp_max": None, "block_sum": other}
    function = changed("reduce_partitions", fill_logits=logits, load_key=key, **not_theirs)
    assert others_of(function, "v2") == {"v1": (logits,), "v1_vector": (key,)}


def test_a_size_that_vllm_lacks_is_named(capsys: pytest.CaptureFixture) -> None:
    wrong = function_of(all_blanks()["qk_dot"], all_blanks()["qk_dot"].stub, HEAD_SIZE=100)
    assert is_ours(attempt("qk_dot", wrong))
    assert "HEAD_SIZE is 100" in capsys.readouterr().out


def test_a_name_that_attempt_does_not_know_takes_two_lines() -> None:
    with pytest.raises(ValueError, match="did you mean 'load_key'") as caught:
        attempt("load_ky", changed("load_key"))
    assert len(caught.value._render_traceback_()) == 2


# Blank, a piece of its answer, what stands in its place, and the picture's title.
TITLES = [
    ("add_values", "v_vec[j] = to_float(v_block[row_idx, physical_block_offset + j])",
     "v_vec[j] = to_float(v_block[row_idx, physical_block_offset + j]) "
     "if first_token + physical_block_offset + j < num_tokens else float32(0)",
     "Your threads read the right elements of v_cache"),
    ("write_output", "range(cuda.threadIdx.x,", "range(127 - cuda.threadIdx.x,",
     "352 of 352 elements of v_cache are read by other threads than in ours, which is right too"),
    ("write_output", "range(seq_len)", "range(min(seq_len, 41))",  # far behind the first
     "1,856 of 4,480 elements of v_cache are read by the wrong threads, or by none"),
    ("write_keys", "", "", "our threads "),
    ("load_key", "vec_idx = thread_group_offset + j",
     "...\n        vec_idx = thread_group_offset + 0",
     "by the wrong threads, or by none"),  # unfinished
]  # fmt: skip


@pytest.mark.parametrize(("name", "right", "wrong", "title"), TITLES)
def test_the_picture_says_what_the_words_say(
    name: str, right: str, wrong: str, title: str, shown: list
) -> None:
    attempt(name, changed(name, (right, wrong)))
    assert title in shown[0].figure.get_suptitle()
    require_readable(shown[0].figure)


@pytest.mark.filterwarnings("error")
def test_a_goal_names_the_axes_and_can_be_read() -> None:
    blank = all_blanks()["load_key"]
    trace = blank.trials()[0].trace(None).only(array="k_cache", kind="read")
    figure = draw_goal(trace, blank.picture)
    require_readable(figure)
    assert "piece, offset, place" in texts_of(figure)[-1]
    assert "in the first lines" in figure.get_suptitle()
