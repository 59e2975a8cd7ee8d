"""What is timed is right, and how it is timed is fair."""

import json

import pytest
import torch

from pa_tutorial.attention.paged import paged_gather
from pa_tutorial.bench import __main__ as bench
from pa_tutorial.bench import cpu_decode, vllm_peer
from pa_tutorial.bench.cpu_inputs import Batch, Shape, read_once
from pa_tutorial.bench.cpu_peers import peers
from pa_tutorial.bench.engine_bench import Workload, measure
from pa_tutorial.bench.engine_ways import GATHERS, WAYS
from pa_tutorial.bench.timing import interleaved
from pa_tutorial.paging.layouts import DTYPES
from pa_tutorial.viz.engine_figures import draw_step_ways

# Two sequences with a tail; two block tables in one pool.
TAIL = Shape("S1", (37, 37), num_heads=4, num_kv_heads=4, head_size=64)
SHARED = Shape("S1", (37, 37), num_heads=4, num_kv_heads=2, head_size=64)
# float32 keeps about 7 digits; torch sums 16-bit weights in 16 bits, with 3 digits or 2.
ERRORS = {torch.float32: 1e-5, torch.float16: 5e-3, torch.bfloat16: 3e-2}


def error(out: torch.Tensor, expected: torch.Tensor) -> float:
    return float((out.float() - expected.float()).norm() / expected.float().norm())


def test_interleaved_runs_everything_once_more_than_it_counts() -> None:
    calls = []
    times = interleaved({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, rounds=5)
    assert calls.count("a") == calls.count("b") == 6
    for row in times.values():
        assert 0 <= row["lowest_ms"] <= row["median_ms"] <= row["highest_ms"]
    pairs = {tuple(calls[i : i + 2]) for i in range(0, len(calls), 2)}
    assert pairs == {("a", "b"), ("b", "a")}, "each round runs each once, in random order"


# What is timed ----------------------------------------------------------------------------------


@pytest.mark.rest(keep=["torch.float32-*", "torch.bfloat16-*"])
@pytest.mark.parametrize("shape", [TAIL, SHARED], ids=["own", "shared"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_kernel_and_its_peers_give_the_result_of_paged_gather_at_each_step(
    shape: Shape, dtype: torch.dtype
) -> None:
    """A gather that runs once, before the clock, would make a peer too fast."""
    batch = Batch(shape.of(dtype))
    steps = {"cpu": cpu_decode.cpu(batch)} | peers(batch)
    for factor in (1, 2):  # the second call finds the memory of the first, and other numbers
        for memory in (batch.memory, *batch.token_major, *batch.contiguous):
            memory.mul_(factor)
        expected = paged_gather(*batch.arguments)
        for name, step in steps.items():
            out = step()
            assert out.shape == expected.shape
            assert error(out, expected) < ERRORS[dtype], name


def test_batch_has_its_own_shuffled_blocks_and_poisoned_slots() -> None:
    batch = Batch(Shape("mixed", (37, 5, 64), 4, 2, 64))
    own = batch.block_tables[batch.block_tables < 8].tolist()
    assert sorted(own) == list(range(8)) != own
    assert batch.block_tables[1, 1:].tolist() == [8, 8, 8]
    assert batch.memory.isnan().any(dim=-1).sum() == 2 * 2 * (11 + 11 + 16)
    assert not torch.equal(batch.memory, Batch(batch.shape, seed=1).memory)


@pytest.mark.rest("notebook 25 reads with it")
def test_read_bound_reads_every_word() -> None:
    batch = Batch(TAIL)
    assert len(batch.words) * 8 == TAIL.kv_bytes
    words = batch.words[: len(batch.words) // 12 * 12]  # so that threads and places share evenly
    assert read_once(words, 3) == words.sum()


def test_what_is_missing_for_the_peer_is_said(monkeypatch, tmp_path, capsys) -> None:
    monkeypatch.setattr(vllm_peer, "find_spec", lambda name: None)
    bench.main(["--peer", "vllm", "--out", str(tmp_path)])
    assert "left out: vLLM is not installed" in capsys.readouterr().out
    monkeypatch.setenv("PA_VLLM", str(tmp_path))
    assert vllm_peer.load().endswith("no kernels for this CPU")


# The engine ------------------------------------------------------------------------------------

# 45 + 8 tokens: a tail, and a new block on the way. The CPU kernel for heads of 64 dimensions is
# compiled for the ladder too.
SIZES = {"num_layers": 2, "head_size": 64, "max_len": 64}
SMALL = Workload(num_requests=3, prompt_len=45, new_tokens=8, **SIZES)


def test_a_way_that_generates_other_tokens_is_refused() -> None:
    wrong = {"cpu": WAYS["cpu"], "wrong": WAYS["no_attention"]}
    with pytest.raises(ArithmeticError, match="wrong generated other tokens than cpu"):
        measure(1, SMALL, wrong)


def test_a_run_has_every_way_and_its_figure_can_be_drawn(capsys) -> None:
    found = measure(1, SMALL)  # and all, but one without attention, generate the same
    assert found["steps"]["times"].keys() == found["steps"]["words"].keys() == WAYS.keys()
    assert found["steps"]["best_gather"] in GATHERS
    assert "(best gather)" in capsys.readouterr().out
    assert "times as long" in draw_step_ways(found).get_suptitle()


# The program ------------------------------------------------------------------------------------


def test_a_run_of_one_section_keeps_the_others(monkeypatch, tmp_path) -> None:
    for name in ("decode", "noise"):
        monkeypatch.setitem(bench.SECTIONS, name, ("nothing", lambda rounds: [rounds]))
    bench.main(["--only", "decode", "noise", "--rounds", "2", "--out", str(tmp_path)])
    (path,) = tmp_path.iterdir()
    bench.main(["--only", "noise", "--rounds", "3", "--out", str(tmp_path)])
    written = json.loads(path.read_text(encoding="utf-8"))
    assert written["decode"] == [2]
    assert written["noise"] == [3]
    assert written.keys() == {"machine", "processor", "decode", "noise"}
