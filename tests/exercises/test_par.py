"""Par and the goal: what is counted, what is required, and what an unwritten blank shows."""

from collections.abc import Callable

import IPython
import pytest

from pa_tutorial.checks.cases import WORKED_EXAMPLE
from pa_tutorial.exercises import attempt
from pa_tutorial.exercises.blank import Blank, all_blanks
from pa_tutorial.exercises.blank_verdict import verdict
from pa_tutorial.exercises.kernel_costs import accesses, count, taken, within
from pa_tutorial.exercises.par import best_known
from simt import Trace, launch
from tests.exercises.blank_cells import function_of
from tests.simt.helpers import kernel, zeros

BLANKS = list(all_blanks().values())
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


def trace_of_lent() -> Trace:
    lent = kernel("out, a, n", LENT)
    return launch(lent, 1, 64, zeros(64), zeros(128), 2, trace=0, float64=True).trace


@pytest.mark.parametrize("quantity", COUNTS)
def test_a_quantity_is_counted(quantity: str) -> None:
    assert count(accesses(trace_of_lent(), quantity), quantity) == COUNTS[quantity]


def test_only_what_a_function_and_its_callees_do_is_counted() -> None:
    """block_max calls warp_max, and paged_attention_v1 calls all."""
    trace = all_blanks()["warp_max"].trials()[0].trace(None)
    found = {}
    for name in ("qk_dot", "warp_max", "block_max", "paged_attention_v1"):
        found[name] = count(accesses(within(trace, name), "shuffles"), "shuffles")
    assert found["qk_dot"] == 4
    assert found["block_max"] == found["warp_max"] + 4  # the broadcast, in each warp
    assert found["paged_attention_v1"] == trace.only(kind="shuffle").num_instructions


# Answers that take less than ours, and are right -------------------------------------------------

LESS = {
    "load_query": '''
@cuda.jit(device=True)
def load_query(q_vecs, q, thread_idx):
    for d in range(thread_idx, HEAD_SIZE, NUM_THREADS):  # neighbours load neighbours
        vec_idx = d // VEC_SIZE
        q_vecs[vec_idx % THREAD_GROUP_SIZE, vec_idx // THREAD_GROUP_SIZE, d % VEC_SIZE] = q[d]
    cuda.syncthreads()
''',
    "block_max": '''
@cuda.jit(device=True)
def block_max(red_smem, value, smallest_mask, thread_idx):
    value = warp_max(value, WARP_SIZE // 2, smallest_mask)
    if thread_idx % WARP_SIZE == 0:
        red_smem[thread_idx // WARP_SIZE] = value
    cuda.syncthreads()
    return warp_max(red_smem[thread_idx % NUM_WARPS], NUM_WARPS // 2, 1)  # all lanes find it
''',
    "block_sum": '''
@cuda.jit(device=True)
def block_sum(red_smem, value, thread_idx):
    value = warp_sum(value, WARP_SIZE // 2)
    if thread_idx % WARP_SIZE == 0:
        red_smem[thread_idx // WARP_SIZE] = value
    cuda.syncthreads()
    return warp_sum(red_smem[thread_idx % NUM_WARPS], NUM_WARPS // 2)
''',
    "scores_to_weights": '''
@cuda.jit(device=True)
def scores_to_weights(logits, red_smem, qk_max, num_tokens, thread_idx):
    exp_sum = float32(0)
    for i in range(thread_idx, num_tokens, NUM_THREADS):
        weight = math.exp(logits[i] - qk_max)
        logits[i] = weight
        exp_sum += weight  # not read again
    exp_sum = block_sum(red_smem, exp_sum, thread_idx)
    inv_sum = float32(1) / (exp_sum + float32(1e-6))
    for i in range(thread_idx, num_tokens, NUM_THREADS):
        logits[i] *= inv_sum
    cuda.syncthreads()
    return exp_sum
''',
    "add_warps": '''
@cuda.jit(device=True)
def add_warps(accs, out_smem, thread_idx):
    warp_idx, lane = thread_idx // WARP_SIZE, thread_idx % WARP_SIZE
    half = NUM_WARPS // 2
    i = NUM_WARPS
    while i > 1:
        mid = i // 2
        for j in range(NUM_ROWS_PER_THREAD):
            row_idx = lane // NUM_V_VECS_PER_ROW + j * NUM_ROWS_PER_ITER
            writes = row_idx < HEAD_SIZE and lane % NUM_V_VECS_PER_ROW == 0
            if mid <= warp_idx < i and writes:  # into the place that it alone has read
                out_smem[warp_idx % half * HEAD_SIZE + row_idx] = accs[j]
        cuda.syncthreads()
        for j in range(NUM_ROWS_PER_THREAD):
            row_idx = lane // NUM_V_VECS_PER_ROW + j * NUM_ROWS_PER_ITER
            writes = row_idx < HEAD_SIZE and lane % NUM_V_VECS_PER_ROW == 0
            if warp_idx < mid and writes:
                accs[j] += out_smem[(warp_idx + mid) % half * HEAD_SIZE + row_idx]
        i = mid
''',
    "largest_of_partitions": '''
@cuda.jit(device=True)
def largest_of_partitions(shared_max_logits, red_smem, max_logits, num_partitions, thread_idx):
    max_logit = float32(-FLT_MAX)
    for i in range(thread_idx, num_partitions, NUM_THREADS):
        its_own = max_logits[i]
        shared_max_logits[i] = its_own
        max_logit = max(max_logit, its_own)
    return block_max(red_smem, max_logit, 1, thread_idx)
''',
}  # fmt: skip
OF_KERNEL = ("paged_attention_v1", "paged_attention_v2")  # with add_warps of LESS


def lesser(name: str) -> Callable:
    """An answer that takes what is best known."""
    blanks = all_blanks()
    if name in LESS:
        return function_of(blanks[name], LESS[name])
    add_warps = function_of(blanks["add_warps"], LESS["add_warps"])
    return function_of(blanks[name], blanks[name].source, add_warps=add_warps)


@pytest.mark.parametrize("name", [*LESS, *OF_KERNEL])
def test_what_is_best_known_is_right_and_takes_that(
    name: str, capsys: pytest.CaptureFixture
) -> None:
    answer = lesser(name)
    assert attempt(name, answer) is answer
    assert "Yours is at par." in capsys.readouterr().out
    blank = all_blanks()[name]
    ours = taken(blank, blank.trials()[0], None)
    assert blank.best.items() <= best_known(blank).items()
    assert all(blank.best[quantity] < ours[quantity] for quantity in blank.best)


def test_every_smaller_number_has_its_program() -> None:
    assert {blank.name for blank in BLANKS if blank.best} == {*LESS, *OF_KERNEL}


@pytest.mark.parametrize("name", ["load_query", "add_warps"])
def test_a_dear_answer_is_right_and_told_of_the_challenge(
    name: str, capsys: pytest.CaptureFixture
) -> None:
    blank = all_blanks()[name]
    mine = function_of(blank, blank.source)
    assert attempt(name, mine) is mine
    said = capsys.readouterr().out
    assert "right in all" in said
    assert "like ours. A challenge: can you reach par?" in said


def test_what_only_the_answer_takes_is_no_habit_of_ours(capsys: pytest.CaptureFixture) -> None:
    """Each element is loaded twice."""
    blank = all_blanks()["load_key"]
    line = next(line for line in blank.source.splitlines() if "k_vecs[j, e] =" in line)
    mine = function_of(blank, blank.source.replace(line, f"{line}\n{line}"))
    assert attempt("load_key", mine) is mine
    said = capsys.readouterr().out
    assert "Yours takes 32 memory transactions and 128 sectors for k_cache. A challenge" in said


# Right only with par -----------------------------------------------------------------------------

# blank, a line of the answer, what is in its place -> the quantity
BY_ELEMENT = {
    "load_query_by_vec": (
        "store(q_vecs[thread_group_offset, i], 0, q_vec)",
        "for e in range(VEC_SIZE):\n"
        "            q_vecs[thread_group_offset, i, e] = q[vec_idx * VEC_SIZE + e]",
        "memory transactions for q;",
    ),
    "load_key_by_vec": (
        "widen(k_vecs[j], k_vec)",
        "for e in range(VEC_SIZE):\n"
        "            k_vecs[j, e] = to_float(k_block[piece, physical_block_offset, first + e])",
        "memory transactions for k_cache;",
    ),
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
}
IN_FLOAT64 = {
    "dot": ("qk = float32(0)", "qk = 0.0", "in float64;"),
    "fill_scores": (
        "alibi_slope * float32(token_idx - seq_len + 1)",
        "alibi_slope * (token_idx - seq_len + 1)",
        "line 7 of fill_scores: qk[token_idx] = score",
    ),
    "maximum_and_sum": ("exp_sum = float32(0)", "exp_sum = 0.0", "in float64; 0 are enough"),
    "write_output": ("acc = float32(0)", "acc = 0.0", "In Numba, a float32 times an integer"),
}


@pytest.mark.parametrize("name", [*BY_ELEMENT, *IN_FLOAT64])
def test_a_right_answer_that_costs_too_much_is_not_enough(name: str) -> None:
    blank = all_blanks()[name]
    old, new, says = {**BY_ELEMENT, **IN_FLOAT64}[name]
    assert old in blank.source
    words = verdict(blank, function_of(blank, blank.source.replace(old, new)))
    assert "the answer is right, but thread block 0 takes" in words
    assert says in words


@pytest.mark.parametrize(
    ("name", "line", "code"),
    [
        ("qk_dot", 6, "qk += to_float(q_vecs[j, e]) * k_vecs[j, e]"),
        ("scores_to_weights", 7, "exp_sum += logits[i]"),
    ],
)
def test_float64_is_a_challenge_elsewhere(
    name: str, line: int, code: str, capsys: pytest.CaptureFixture
) -> None:
    blank = all_blanks()[name]
    mine = function_of(blank, blank.source.replace("float32(0)", "0.0", 1))
    assert attempt(name, mine) is mine
    said = capsys.readouterr().out
    assert "in float64. A challenge" in said
    assert f"Look first at this: line {line} of {name}: {code}\n" in said
    assert said.endswith("write float32(1) / x.\n")


# The goal ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("blank", BLANKS, ids=lambda blank: blank.name)
def test_an_unwritten_blank_shows_its_goal(
    blank: Blank, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[object] = []
    monkeypatch.setattr(IPython, "get_ipython", lambda: True)
    monkeypatch.setattr("IPython.display.display", shown.append)
    attempt(blank.name, function_of(blank, blank.stub))
    said = capsys.readouterr().out
    assert len(shown) == bool(blank.picture)
    assert ("goal, " in said) == (not blank.picture or bool(blank.goal))
    assert ("\npar" in said) == bool(blank.par)
    for name in blank.goal:
        first = WORKED_EXAMPLE.expected()[name][0, 0, 0]
        assert f"{first:.3f}" in said.partition(f"{name} ")[2][:8]


def test_a_goal_of_sizes_is_what_the_answer_returns(capsys: pytest.CaptureFixture) -> None:
    blank = all_blanks()["group_sizes"]
    attempt("group_sizes", function_of(blank, blank.stub))
    numbers = function_of(blank, blank.source)(32, 8, 2)
    names = ("THREAD_GROUP_SIZE", "VEC_SIZE", "NUM_VECS_PER_THREAD")
    pairs = ", ".join(f"{name} is {n}" for name, n in zip(names, numbers, strict=True))
    assert f"itemsize 2: {pairs}" in capsys.readouterr().out


def test_the_best_known_is_of_what_is_counted() -> None:
    assert all(blank.best.keys() <= {*blank.par} for blank in BLANKS)
