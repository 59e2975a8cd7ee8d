"""Par and the goal: what is counted, what is required, and what an unwritten blank shows."""

import pytest

from pa_tutorial.checks.cases import WORKED_EXAMPLE
from pa_tutorial.exercises import attempt
from pa_tutorial.exercises.blank import Blank, all_blanks
from pa_tutorial.exercises.kernel_costs import accesses, count, taken, within
from pa_tutorial.exercises.ours import is_ours
from pa_tutorial.exercises.par import best_known
from simt import launch
from tests.exercises.blank_cells import changed, function_of, said
from tests.simt.helpers import kernel, zeros

BLANKS = all_blanks()
LENT = """
s = cuda.shared.array(64, float32)
s[t] = a[2 * t]
cuda.syncthreads()
out[t] = cuda.shfl_down_sync(0xffffffff, s[2 * t % 64], 1) * n
"""
# quantity -> what two warps take for LENT
COUNTS = {
    "a transactions": 2,
    "a sectors": 16,  # every other of 128 float32
    "out transactions": 2,
    "out sectors": 8,
    "s wavefronts": 6,  # 2 to write; 2 × 2 to read, with two lanes per bank
    "shared wavefronts": 6,
    "b transactions": 0,
    "barriers": 1,
    "shuffles": 2,
    "float64 instructions": 2,  # float32 * int64
}


def test_each_quantity_is_counted() -> None:
    lent = kernel("out, a, n", LENT)
    trace = launch(lent, 1, 64, zeros(64), zeros(128), 2, trace=0, float64=True).trace
    assert {name: count(accesses(trace, name), name) for name in COUNTS} == COUNTS


def test_only_what_a_function_and_its_callees_do_is_counted() -> None:
    """block_max calls warp_max, and paged_attention_v1 calls all."""
    trace = BLANKS["warp_max"].trials()[0].trace(None)
    found = {}
    for name in ("qk_dot", "warp_max", "block_max", "paged_attention_v1"):
        found[name] = count(accesses(within(trace, name), "shuffles"), "shuffles")
    assert found["qk_dot"] == 4
    assert found["block_max"] == found["warp_max"] + 4  # the broadcast, in each warp
    assert found["paged_attention_v1"] == trace.only(kind="shuffle").num_instructions


# What makes of our answers some that take less, and are right.
LESS: dict[str, tuple[tuple[str, str], ...]] = {
    "load_query": (  # neighbours load neighbours
        ("i in range(thread_group_idx, NUM_VECS_PER_THREAD, NUM_THREAD_GROUPS)",
         "d in range(thread_idx, HEAD_SIZE, NUM_THREADS)"),
        ("vec_idx = thread_group_offset + i * THREAD_GROUP_SIZE", "vec_idx = d // VEC_SIZE"),
        ("e in range(VEC_SIZE)", "e in range(d % VEC_SIZE, d % VEC_SIZE + 1)"),
        ("[thread_group_offset, i, e]",
         "[vec_idx % THREAD_GROUP_SIZE, vec_idx // THREAD_GROUP_SIZE, e]"),
    ),
    "block_max": (  # all lanes find it
        ("[lane] if lane < NUM_WARPS else float32(-FLT_MAX)", "[lane % NUM_WARPS]"),
        ("cuda.shfl_sync(ALL_LANES, warp_max(value, NUM_WARPS // 2, 1), 0)",
         "warp_max(value, NUM_WARPS // 2, 1)"),
    ),
    "block_sum": (
        ("[lane] if lane < NUM_WARPS else float32(0)", "[lane % NUM_WARPS]"),
        ("cuda.shfl_sync(ALL_LANES, warp_sum(value, NUM_WARPS // 2), 0)",
         "warp_sum(value, NUM_WARPS // 2)"),
    ),
    "scores_to_weights": (  # not read again
        ("logits[i] = math", "weight = math"),
        ("exp_sum += logits[i]", "logits[i] = weight\n        exp_sum += weight"),
    ),
    "add_warps": (  # into the place that it alone has read, so no barrier is needed after reading
        ("(warp_idx - mid) * HEAD_SIZE", "warp_idx % (NUM_WARPS // 2) * HEAD_SIZE"),
        ("[warp_idx * HEAD_SIZE", "[(warp_idx + mid) % (NUM_WARPS // 2) * HEAD_SIZE"),
        ("cuda.syncthreads()\n        i = mid", "i = mid"),
    ),
    "largest_of_partitions": (
        ("shared_max_logits[i] = max_logits[i]",
         "its_own = max_logits[i]\n        shared_max_logits[i] = its_own"),
        ("max(max_logit, shared_max_logits[i])", "max(max_logit, its_own)"),
    ),
    "paged_attention_v1": (),  # with that add_warps
    "paged_attention_v2": (),
}  # fmt: skip


@pytest.mark.parametrize("name", LESS)
def test_what_is_best_known_is_right_and_takes_that(
    name: str, capsys: pytest.CaptureFixture
) -> None:
    names = {} if LESS[name] else {"add_warps": changed("add_warps", *LESS["add_warps"])}
    answer = changed(name, *LESS[name], **names)
    assert attempt(name, answer) is answer
    assert "Yours is at par." in capsys.readouterr().out
    blank = BLANKS[name]
    ours = taken(blank, blank.trials()[0], None)
    assert blank.best.items() <= best_known(blank).items()
    assert all(blank.best[quantity] < ours[quantity] for quantity in blank.best)


def test_every_smaller_number_has_its_program_and_is_of_what_is_counted() -> None:
    assert {name for name, blank in BLANKS.items() if blank.best} == {*LESS}
    assert all(BLANKS[name].best.keys() <= {*BLANKS[name].par} for name in LESS)


LOAD = "k_vecs[j, e] = to_float(k_block[piece, physical_block_offset, first + e])"
# blank, what is changed in its answer, and what is said: a challenge
DEAR = [
    ("load_query", "", "", "like ours. A challenge: can you reach par?"),
    ("load_key", LOAD, f"{LOAD}; {LOAD}", "Yours takes 32 memory transactions and 128 sectors for"),
    ("scores_to_weights", "float32(0)", "0.0", "line 7 of scores_to_weights: exp_sum += logits[i]"),
]


@pytest.mark.parametrize(("name", "old", "new", "says"), DEAR)
def test_a_dear_answer_is_right_and_told_of_the_challenge(
    name: str, old: str, new: str, says: str, capsys: pytest.CaptureFixture
) -> None:
    mine = changed(name, (old, new))
    assert attempt(name, mine) is mine
    words = capsys.readouterr().out
    assert "A challenge: " in words
    assert says in words


# blank, a line of the answer, what is in its place -> the quantity, or the line
TOO_DEAR = {
    "qk_dot_by_vec": (
        "widen(q_vec, load(q_vecs[j], 0))",
        "for e in range(VEC_SIZE):\n            q_vec[e] = to_float(q_vecs[j, e])",
        "wavefronts for q_vecs;",
    ),
    "add_values_by_vec": (
        "widen_4(logits_vec[e:], load_4(logits, first_token + physical_block_offset + e))",
        "for j in range(4):\n"
        "            logits_vec[e + j] = logits[first_token + physical_block_offset + e + j]",
        "wavefronts for logits;",
    ),
    "dot": ("qk = float32(0)", "qk = 0.0", "in float64;"),
    "fill_scores": (
        "alibi_slope * float32(token_idx - seq_len + 1)",
        "alibi_slope * (token_idx - seq_len + 1)",
        "line 7 of fill_scores: qk[token_idx] = score",
    ),
    "maximum_and_sum": ("exp_sum = float32(0)", "exp_sum = 0.0", "in float64; 0 are enough"),
    "write_output": ("acc = float32(0)", "acc = 0.0", "a float32 times an integer"),
}


@pytest.mark.parametrize("name", TOO_DEAR)
def test_a_right_answer_that_costs_too_much_is_not_enough(name: str) -> None:
    old, new, says = TOO_DEAR[name]
    words = said(name, (old, new))
    assert "the answer is right, but thread block 0 takes" in words
    assert says in words


@pytest.mark.parametrize("blank", BLANKS.values(), ids=BLANKS)
def test_an_unwritten_blank_shows_its_goal_and_goes_on_with_ours(
    blank: Blank, shown: list, capsys: pytest.CaptureFixture
) -> None:
    ours = attempt(blank.name, function_of(blank, blank.stub))
    words = capsys.readouterr().out
    assert "not written yet" in words
    assert len(shown) == bool(blank.picture)
    assert ("goal, " in words) == (not blank.picture or bool(blank.goal))
    assert ("\npar" in words) == bool(blank.par)
    for name in blank.goal:
        first = WORKED_EXAMPLE.expected()[name][0, 0, 0]
        assert f"{first:.3f}" in words.partition(f"{name} ")[2][:8]
    assert is_ours(attempt(blank.name, ours))
    assert "still ours" in capsys.readouterr().out
