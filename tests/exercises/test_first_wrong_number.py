"""What is wrong is named where it goes wrong first, at a place that a reader has met."""

import numpy as np
import pytest

from pa_tutorial.exercises import grade
from pa_tutorial.exercises.blank import all_blanks
from pa_tutorial.exercises.blank_verdict import verdict
from pa_tutorial.exercises.ours import BACKENDS
from tests.exercises.blank_cells import function_of

RELATIVE = "logits[token_idx - start_block_idx * BLOCK_SIZE]"
ROW = "token_idx % BLOCK_SIZE])"
# blank, a piece of its answer, what stands in its place, and what the verdict says
WRONG = {
    "sum without the maximum": (
        "maximum_and_sum",
        " - qk_max)",
        ")",
        "the sum of the exponentials",
    ),
    "results swapped": (
        *("maximum_and_sum", "return qk_max, exp_sum", "return exp_sum, qk_max"),
        "the largest score should be 0.679, is 6.41 (sequence 0, head 0); it is the sum of the exp",
    ),
    "some scores not written": (
        *("fill_scores", "range(cuda.threadIdx.x, seq_len", "range(cuda.threadIdx.x, 128"),
        "out of bounds",
    ),
    "a turn too few": (
        *("fill_scores", "seq_len, NUM_THREADS", "min(seq_len, 10), NUM_THREADS"),
        "no thread wrote the score of token 10 (sequence 0, head 0)",
    ),
    "output not written": (
        *("write_output", "threadIdx.x, HEAD", "threadIdx.x + 1, HEAD"),
        "no thread wrote the output of element 0",
    ),
    "no row is written": ("write_rows", "== 0:", "== 0 and i:", "no thread wrote the output of el"),
    "shares as runs": (
        *("load_query", "thread_group_offset + i *", "i + 0 *"),
        "q_vecs[0, 1, 0] should be 8, is 2",
    ),
    "vecs missing": (
        *(
            "load_query",
            "NUM_VECS_PER_THREAD, NUM_THREAD_GROUPS",
            "NUM_VECS_PER_THREAD, NUM_THREADS",
        ),
        "q_vecs[0, 32, 0] was never written; it should be 128",
    ),
    "first of a piece": ("load_key", "first + e]", "e]", "k_vecs[0, 0] of thread 1 should be 302"),
    "an empty slot is a score": ("fill_logits", ">= seq_len", "> seq_len", "logits[11] is nan"),
    "an empty slot is left out": (
        *(
            "fill_logits",
            f"{RELATIVE} = float32(0) if empty else qk",
            f"if not empty: {RELATIVE} = qk",
        ),
        "no thread wrote logits[11], but it must be 0",
    ),
    "not relative to the start": (
        *("fill_logits", RELATIVE, "logits[token_idx]"),
        "by itself, on blocks (1, 2) of the worked example: logits begins with token 8",
    ),
    "a quotient": ("group_sizes", "HEAD_SIZE //", "HEAD_SIZE /", "so divide by `//`, not by `/`"),
}
LATER = "fill_logits", "scores_to_weights", "add_values", "write_output"


@pytest.mark.parametrize(("name", "right", "wrong", "says"), WRONG.values(), ids=WRONG)
def test_the_first_wrong_number_is_named(name: str, right: str, wrong: str, says: str) -> None:
    blank = all_blanks()[name]
    text = blank.source.replace(right, wrong)
    assert text != blank.source
    words = verdict(blank, function_of(blank, text))
    assert says in words
    assert not [other for other in LATER if other != name and f"in {other}" in words]


def test_a_function_that_comes_later_is_said_to() -> None:
    blank = all_blanks()["load_query"]
    text = blank.source.replace("cuda.syncthreads()", "pass")
    assert "in qk_dot, which you write later" in verdict(blank, function_of(blank, text))


def test_a_slot_without_a_token_is_blamed_only_where_there_is_one() -> None:
    blank = all_blanks()["write_output"]
    divided = blank.source.replace("acc / exp_sum", "acc * math.inf * 0")
    assert "0 was divided by 0, or something" in verdict(blank, function_of(blank, divided))
    answer = lambda scores: (0.0, float("nan"))  # noqa: E731
    assert "slot" not in str(grade("running_max_and_sum", answer))


def test_a_race_asks_for_the_index_first() -> None:
    blank = all_blanks()["load_query"]
    text = blank.source.replace("q_vecs[thread_group_offset", "q_vecs[0")
    assert "Is the index right? If so, should only one thread" in verdict(
        blank, function_of(blank, text)
    )


def test_what_the_naive_kernel_calls_its_maximum_and_sum_is_its_own_matter() -> None:
    blank = all_blanks()["naive_kernel"]
    text = blank.source.replace("qk_max", "m").replace("exp_sum", "l")
    assert verdict(blank, function_of(blank, text)) == ""


def test_the_naive_kernel_tells_its_maximum_and_sum() -> None:
    trial = all_blanks()["maximum_and_sum"].trials()[0]
    problem = trial.problem
    found = BACKENDS["naive"].prepare(problem.paged("vllm")).probe()
    for name in ("qk_max", "exp_sum"):
        np.testing.assert_allclose(found[name], problem.expected()[name], rtol=1e-5)


def test_the_smallest_addend_of_softmax_may_be_left_out() -> None:
    """Without vLLM's 1e-6 the weights are nearer to what softmax says: the sum is at least 1."""
    blank = all_blanks()["scores_to_weights"]
    text = blank.source.replace("(exp_sum + float32(1e-6))", "exp_sum")
    assert text != blank.source
    assert verdict(blank, function_of(blank, text)) == ""
