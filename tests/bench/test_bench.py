"""What is timed is right, and how it is timed is fair."""

import json
from itertools import groupby

import pytest
import torch

from pa_tutorial.attention.paged import paged_gather
from pa_tutorial.bench import __main__ as bench
from pa_tutorial.bench import cpu_decode, vllm_peer
from pa_tutorial.bench.cpu_inputs import Batch, ColdCaches, Shape, read_once
from pa_tutorial.bench.cpu_peers import peers
from pa_tutorial.bench.timing import interleaved
from pa_tutorial.paging.layouts import DTYPES

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


def test_caches_are_emptied_before_the_clock_runs(monkeypatch) -> None:
    cold, calls = ColdCaches(num_bytes=2**16), []
    monkeypatch.setattr(cold, "flush", lambda: calls.append("flush"))
    assert cold(lambda: calls.append("call")) < 1000
    assert calls == ["flush", "call"]


# What is timed ----------------------------------------------------------------------------------


@pytest.mark.rest(keep=["torch.float32-*", "torch.bfloat16-*"])
@pytest.mark.parametrize("shape", [TAIL, SHARED], ids=["own", "shared"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_kernel_and_its_peers_give_the_result_of_paged_gather(shape: Shape, dtype) -> None:
    batch = Batch(shape.of(dtype))
    expected = paged_gather(*batch.arguments)
    for name in ("cpu", *peers(batch)):
        step = ({"cpu": cpu_decode.cpu(batch)} | peers(batch))[name]  # in fresh memory
        for _ in range(2):  # the second call finds the memory of the first
            out = step()
            assert out.shape == expected.shape
            assert error(out, expected) < ERRORS[dtype], name


def test_peers_read_the_cache_anew_at_each_step() -> None:
    """A gather that runs once, before the clock, would make a peer too fast."""
    batch = Batch(SHARED)
    steps = {name: step for name, step in peers(batch).items() if name.startswith("gather")}
    before = {name: step().clone() for name, step in steps.items()}
    batch.memory.mul_(2)
    for cache in batch.token_major:
        cache.mul_(2)
    assert all(error(step(), before[name]) > 0.1 for name, step in steps.items())


def test_mixed_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match=r"batch.shape.seq_lens is \(3, 4\); it must be equal"):
        peers(Batch(Shape("mixed", (3, 4), 4, 4, 64)))


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


@pytest.mark.rest
def test_a_shape_too_large_for_memory_is_left_out_and_named(monkeypatch) -> None:
    monkeypatch.setattr(cpu_decode, "most_kv_bytes", lambda: SHARED.kv_bytes)
    found = cpu_decode.measure(1, [TAIL, SHARED])
    (row,) = found["rows"]
    assert row["shape"] == SHARED.as_row()
    assert row["times"].keys() == {"read", "cpu", *peers(Batch(SHARED))}
    assert found["left_out"] == [f"{TAIL}: K and V are 0 MiB, over 0"]


# vLLM's kernel ----------------------------------------------------------------------------------


class StandInForVllm:
    """vLLM's custom operations, with its shapes and dtypes, in torch."""

    spoils = 1.0  # what an output is multiplied by

    def cpu_attn_reshape_and_cache(self, key, value, k_cache, v_cache, slots, isa, *scales) -> None:
        assert (slots.dtype, isa, scales) == (torch.int64, "vec", (1.0, 1.0, "auto"))
        for tokens, cache in ((key, k_cache), (value, v_cache)):
            assert tokens.is_contiguous()
            cache.transpose(1, 2)[slots // 128, slots % 128] = tokens

    def get_scheduler_metadata(self, num_seqs, num_heads, num_kv_heads, head_size, lens, *rest):
        _, starts, *_ = rest
        assert (len(lens), starts.tolist()) == (num_seqs, [*range(num_seqs + 1)])
        return torch.zeros(1)

    def cpu_attention_with_kv_cache(self, q, k_cache, v_cache, out, starts, lens, scale, *rest):
        causal, slopes, window, tables, softcap, *_ = rest
        assert (causal, slopes, window, softcap) == (True, None, -1, 0.0)
        assert starts.dtype == lens.dtype == tables.dtype == torch.int32
        out.copy_(self.spoils * paged_gather(q, k_cache, v_cache, tables, lens, scale))


@pytest.fixture
def stand_in(monkeypatch) -> StandInForVllm:
    ops = StandInForVllm()
    monkeypatch.setattr(vllm_peer, "load", lambda: "")
    monkeypatch.setattr(torch.ops, "_C", ops)
    monkeypatch.setattr("pa_tutorial.private_names.init_amx", lambda: False, raising=False)
    return ops


MIXED = Shape("mixed", (37, 5, 300), num_heads=4, num_kv_heads=2, head_size=64)


def test_vllm_gets_the_tokens_of_the_batch_in_its_own_blocks_and_no_other_output_passes(
    stand_in,
) -> None:
    steps = vllm_peer.steps_of(Batch(MIXED))  # compares the outputs
    assert [*steps] == ["read", "cpu", "vllm vec"]
    stand_in.spoils = 1.001
    with pytest.raises(ArithmeticError, match=r"vllm vec differs from ours by 1\.0e-03"):
        vllm_peer.steps_of(Batch(MIXED))


@pytest.mark.rest("the other tests of interleaved times")
def test_each_side_is_timed_in_its_own_stretch(stand_in, monkeypatch, capsys) -> None:
    """Calls in turn would measure each side beside the spinning threads of the other."""
    calls = []
    watched = {name: lambda name=name: calls.append(name) for name in ("read", "cpu", "vllm vec")}
    monkeypatch.setattr(vllm_peer, "steps_of", lambda batch: watched)
    found = vllm_peer.measure(2, [TAIL])
    assert found["rows"][0]["times"].keys() == watched.keys()
    stretches = {len([*stretch]) % (1 + vllm_peer.CALLS) for _, stretch in groupby(calls)}
    assert stretches == {0}
    assert "vllm / cpu" in capsys.readouterr().out


def test_what_is_missing_for_the_peer_is_said(monkeypatch, tmp_path, capsys) -> None:
    monkeypatch.setattr(vllm_peer, "find_spec", lambda name: None)
    bench.main(["--peer", "vllm", "--out", str(tmp_path)])
    assert "left out: vLLM is not installed" in capsys.readouterr().out
    monkeypatch.setenv("PA_VLLM", str(tmp_path))
    assert vllm_peer.load().endswith("no kernels for this CPU")


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


def test_zero_rounds_are_refused(capsys) -> None:
    with pytest.raises(SystemExit):
        bench.main(["--rounds", "0"])
    assert "--rounds is 0; it must be at least 1" in capsys.readouterr().err
