"""Par and the goal: what is counted, what is required, and what an unwritten blank shows."""

import pytest

from pa_tutorial.checks.cases import WORKED_EXAMPLE
from pa_tutorial.exercises import attempt
from pa_tutorial.exercises.blank import Blank, all_blanks
from pa_tutorial.exercises.kernel_costs import accesses, count, taken, within
from pa_tutorial.exercises.ours import is_ours
from simt import launch
from tests.exercises.blank_cells import changed, function_of
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
    "scores_to_weights": (  # not read again
        ("logits[i] = math", "weight = math"),
        ("exp_sum += logits[i]", "logits[i] = weight\n        exp_sum += weight"),
    ),
    "add_warps": (  # into the place that it alone has read, so no barrier is needed after reading
        ("(warp_idx - mid) * HEAD_SIZE", "warp_idx % (NUM_WARPS // 2) * HEAD_SIZE"),
        ("[warp_idx * HEAD_SIZE", "[(warp_idx + mid) % (NUM_WARPS // 2) * HEAD_SIZE"),
        ("cuda.syncthreads()\n        i = mid", "i = mid"),
    ),
    "paged_attention_v1": (),  # with that add_warps
}


@pytest.mark.parametrize("name", LESS)
def test_what_is_best_known_is_right_and_takes_that(
    name: str, capsys: pytest.CaptureFixture
) -> None:
    names = {} if LESS[name] else {"add_warps": changed("add_warps", *LESS["add_warps"])}
    answer = changed(name, *LESS[name], **names)
    assert attempt(name, answer) is answer
    assert "Yours is at par." in capsys.readouterr().out


@pytest.mark.parametrize("name", [name for name, blank in BLANKS.items() if blank.best])
def test_what_is_best_known_is_less_than_ours_takes(name: str) -> None:
    blank = BLANKS[name]
    ours = taken(blank, blank.trials()[0], None)
    assert all(blank.best[quantity] < ours[quantity] for quantity in blank.best)


def test_par_counts_plain_python_in_the_first_case(capsys: pytest.CaptureFixture) -> None:
    attempt("generate", changed("generate"))
    line = capsys.readouterr().out.splitlines()[-1]
    assert line.startswith("par, required, in the first case: ")
    assert line.endswith("tokens computed. Yours is at par.")


LOAD = "k_vecs[j, e] = to_float(k_block[piece, physical_block_offset, first + e])"
BY_ELEMENT = "for e in range(VEC_SIZE):\n            q_vec[e] = to_float(q_vecs[j, e])"
# blank, what is changed in its answer, and what is said: a challenge, or not enough
DEAR = [
    ("load_query", "", "", "like ours. A challenge: can you reach par?"),
    ("load_key", LOAD, f"{LOAD}; {LOAD}", "takes 32 memory transactions and 128 sectors for"),
    ("scores_to_weights", "float32(0)", "0.0", "line 7 of scores_to_weights: exp_sum += logits[i]"),
    ("qk_dot_by_vec", "widen(q_vec, load(q_vecs[j], 0))", BY_ELEMENT, "wavefronts for q_vecs;"),
    ("dot", "qk = float32(0)", "qk = 0.0", "in float64;"),
    ("write_output", "acc = float32(0)", "acc = 0.0", "a float32 times an integer"),
]


@pytest.mark.parametrize(("name", "old", "new", "says"), DEAR)
def test_a_right_answer_that_costs_more_goes_on_unless_par_is_required(
    name: str, old: str, new: str, says: str, capsys: pytest.CaptureFixture
) -> None:
    mine = changed(name, (old, new))
    goes_on = attempt(name, mine)
    words = capsys.readouterr().out
    assert says in words
    if BLANKS[name].required:
        assert "the answer is right, but thread block 0 takes" in words
        assert is_ours(goes_on)
    else:
        assert "A challenge: " in words
        assert goes_on is mine


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
