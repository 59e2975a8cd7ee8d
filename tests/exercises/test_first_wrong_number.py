"""What is wrong is named where it goes wrong first, at a place that a reader has met."""

import pytest

from pa_tutorial.exercises import grade
from pa_tutorial.exercises.blank import all_blanks
from tests.exercises.blank_cells import said

RELATIVE = "logits[token_idx - start_block_idx * BLOCK_SIZE]"
# Blank, a piece of its answer, what stands in its place, and what the verdict says.
WRONG = [
    ("maximum_and_sum", " - qk_max)", ")", "the sum of exp(score), without the maximum"),
    ("fill_scores", "seq_len, NUM_THREADS", "min(seq_len, 10), NUM_THREADS",
     "no thread wrote the score of token 10 (sequence 0, head 0)"),
    ("fill_logits", RELATIVE, "logits[token_idx]",
     "by itself, on blocks (1, 2) of the worked example: logits begins with token 8"),
    ("group_sizes", "HEAD_SIZE //", "HEAD_SIZE /", "so divide by `//`, not by `/`"),
    ("warp_max", "value = max(value, cuda", "value += (cuda",
     "is -inf (sequence 0, head 0): several -FLT_MAX were added"),
    ("block_sum", "lane < NUM_WARPS else float32(0)", "lane < 1 else float32(-FLT_MAX)",
     "as if -FLT_MAX was added; lanes without a sum must add 0"),
    ("block_max", "if lane < NUM_WARPS", "if thread_idx < NUM_WARPS", "only warp 0 knows it"),
    ("scores_to_weights", "num_tokens, NUM_THREADS", "logits.size, NUM_THREADS",
     "reads logits[16], but the sequence has 11 tokens, in blocks of 8\n  line 6 of scores_to"),
    ("scores_to_weights", "num_tokens, NUM_THREADS", "num_tokens + 5, NUM_THREADS",
     "as if the 5 slots without a token counted"),
    ("scores_to_weights", "num_tokens, NUM_THREADS", "min(num_tokens, 128), NUM_THREADS",
     "as if tokens from 128 on didn't count"),
    ("scores_to_weights", "return exp_sum", "return inv_sum", "it is 1 / the sum"),
    ("bounds_of_partition", "(start_block_idx, start_block_idx + num_blocks)", "0, 2",
     "returned (11, 0, 2); it must return two values"),
    ("paged_attention_v2", "partition_idx] = qk_max", "partition_idx] = exp_sum",
     "is 4.85 (sequence 0, head 0); it is the sum of the exponentials in partition 0"),
    ("largest_of_partitions", "block_max(red_smem, max_logit, 1, thread_idx)", "max_logit",
     "it is the maximum of partition 0 alone"),
    ("rescaled_sums", " * math.exp(shared_max_logits[i] - max_logit)", "",
     "it is the plain sum of the partitions' own sums"),
    ("rescaled_sums", "shared_max_logits[i] - max_logit", "max_logit - shared_max_logits[i]",
     "as if the maximum came first in exp"),
]  # fmt: skip
LATER = "fill_logits", "scores_to_weights", "add_values", "write_output"


@pytest.mark.parametrize(
    ("name", "right", "wrong", "says"), WRONG, ids=[f"{name}-{says}" for name, _, _, says in WRONG]
)
def test_the_first_wrong_number_is_named(name: str, right: str, wrong: str, says: str) -> None:
    words = said(name, (right, wrong))
    assert says in words
    assert not [other for other in LATER if other != name and f"in {other}" in words]


def test_a_call_that_leads_to_a_finding_is_shown() -> None:
    right, wrong = "qk_max, num_tokens", "qk_max, seq_len"
    lines = [line.strip() for line in all_blanks()["paged_attention_v2"].source.splitlines()]
    (call,) = (line for line in lines if "scores_to_weights(" in line)
    place = f"called in line {lines.index(call) + 1} of paged_attention_v2"
    words = said("paged_attention_v2", (right, wrong))
    assert words.count("in scores_to_weights") == 1
    assert f"in scores_to_weights, {place}: {call.replace(right, wrong)}\n" in words


def test_a_function_that_comes_later_is_said_to() -> None:
    assert "in qk_dot, which you write later" in said("load_query", ("cuda.syncthreads()", "pass"))


def test_a_slot_without_a_token_is_blamed_only_where_there_is_one() -> None:
    words = said("write_output", ("acc / exp_sum", "acc * math.inf * 0"))
    assert "0 was divided by 0, or something" in words
    answer = lambda outs, lses: (outs[0] * float("nan"), lses[0])  # noqa: E731
    assert "slot" not in str(grade("merge_outputs", answer))


OTHER_RIGHT: dict[str, tuple[tuple[str, str], ...]] = {
    "naive_kernel": (("qk_max", "m"), ("exp_sum", "l")),
    # Without vLLM's 1e-6 the weights are nearer to what softmax says: the sum is at least 1.
    "scores_to_weights": (("(exp_sum + float32(1e-6))", "exp_sum"),),
    # Each element masked by itself, where ours asks first whether it is the last block.
    "add_values": (("if first_token + BLOCK_SIZE > num_tokens:", "if True:"),),
}


@pytest.mark.parametrize("name", OTHER_RIGHT)
def test_another_right_answer_than_ours_is_right(name: str) -> None:
    assert said(name, *OTHER_RIGHT[name]) == ""
