"""What is wrong is named where it goes wrong first, at a place that a reader has met."""

import numpy as np
import pytest

from pa_tutorial.exercises import grade
from pa_tutorial.exercises.blank import all_blanks
from pa_tutorial.exercises.blank_verdict import verdict
from pa_tutorial.exercises.our_kernels import BACKENDS
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
    "added, not compared": (
        *("warp_max", "value = max(value, cuda", "value += (cuda"),
        "is -inf (sequence 0, head 0): several -FLT_MAX were added",
    ),
    "lanes without a sum": (
        *("block_sum", "lane < NUM_WARPS else float32(0)", "lane < 1 else float32(-FLT_MAX)"),
        "as if -FLT_MAX was added; lanes without a sum must add 0",
    ),
    "only warp 0": (
        *("block_max", "if lane < NUM_WARPS", "if thread_idx < NUM_WARPS"),
        "only warp 0 knows it, and all must",
    ),
    "past the slots": (
        *("scores_to_weights", "num_tokens, NUM_THREADS", "logits.size, NUM_THREADS"),
        "reads logits[16], but the sequence has 11 tokens, in blocks of 8\n  line 6 of scores_to",
    ),
    "empty slots count": (
        *("scores_to_weights", "num_tokens, NUM_THREADS", "num_tokens + 5, NUM_THREADS"),
        "as if the 5 slots without a token counted",
    ),
    "no loop": (
        *("scores_to_weights", "num_tokens, NUM_THREADS", "min(num_tokens, 128), NUM_THREADS"),
        "as if tokens from 128 on didn't count",
    ),
    "the inverse": (
        *("scores_to_weights", "return exp_sum", "return inv_sum"),
        "it is 1 / the sum",
    ),
    "three numbers": (
        *("bounds_of_partition", "(start_block_idx, start_block_idx + num_blocks)", "0, 2"),
        "returned (11, 0, 2); it must return two values, num_tokens and (start_block_idx, end_bl",
    ),
    "a sum for a maximum": (
        *("paged_attention_v2", "partition_idx] = qk_max", "partition_idx] = exp_sum"),
        "is 4.85 (sequence 0, head 0); it is the sum of the exponentials in partition 0",
    ),
    "no maximum of all": (
        *("largest_of_partitions", "block_max(red_smem, max_logit, 1, thread_idx)", "max_logit"),
        "it is the maximum of partition 0 alone",
    ),
    "partitions of a longer sequence": (
        *("largest_of_partitions", "num_partitions, NUM_", "max_logits.size, NUM_"),
        "max_logit should be 9, is 1e+30",
    ),
    "no factor": (
        *("rescaled_sums", " * math.exp(shared_max_logits[i] - max_logit)", ""),
        "it is the plain sum of the partitions' own sums",
    ),
    "the other sign": (
        *("rescaled_sums", "shared_max_logits[i] - max_logit", "max_logit - shared_max_logits[i]"),
        "as if the maximum came first in exp",
    ),
    "more partitions than there are": (
        *("reduce_partitions", "(seq_lens[seq_idx] + PARTITION_SIZE - 1) // PARTITION_SIZE"),
        *("max_logits.shape[2]", "isn't there, such as a partition after the sequence's last"),
    ),
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


@pytest.mark.parametrize(
    ("right", "wrong", "function"),
    [
        ("qk_max, num_tokens", "qk_max, seq_len", "scores_to_weights"),
        ("tmp_out[seq_idx, head_idx, partition_idx]", "tmp_out[seq_idx, head_idx]", "write_rows"),
    ],
)
def test_a_call_that_leads_to_a_finding_is_shown(right: str, wrong: str, function: str) -> None:
    blank = all_blanks()["paged_attention_v2"]
    text = blank.source.replace(right, wrong)
    words = verdict(blank, function_of(blank, text))
    assert words.count(f"in {function}") == 1
    call = next(line.strip() for line in text.splitlines() if f"{function}(" in line)
    line = [one.strip() for one in text.splitlines()].index(call) + 1
    assert f"in {function}, called in line {line} of paged_attention_v2: {call}\n" in words


def test_a_function_that_comes_later_is_said_to() -> None:
    blank = all_blanks()["load_query"]
    text = blank.source.replace("cuda.syncthreads()", "pass")
    assert "in qk_dot, which you write later" in verdict(blank, function_of(blank, text))


def test_a_slot_without_a_token_is_blamed_only_where_there_is_one() -> None:
    blank = all_blanks()["write_output"]
    divided = blank.source.replace("acc / exp_sum", "acc * math.inf * 0")
    assert "0 was divided by 0, or something" in verdict(blank, function_of(blank, divided))
    answer = lambda outs, lses: (outs[0] * float("nan"), lses[0])  # noqa: E731
    assert "slot" not in str(grade("merge_outputs", answer))


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
