"""What `make gpu` times, with the CPU and the simulator in the GPU's place."""

import dataclasses
import json
from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch
from fake_gpu import CPU, timed_by

from pa_tutorial.bench import gpu_times, variants
from pa_tutorial.bench.batches import reference, worst_error
from pa_tutorial.bench.cold_batches import TIMES_L2, Pool, Workload
from pa_tutorial.bench.device import Device, host_microseconds
from pa_tutorial.bench.gpu_times import TARGETS, WORKLOADS, Row, compare, pools, targets
from pa_tutorial.bench.gpu_triton import Tuner
from pa_tutorial.bench.variants import PAGED
from pa_tutorial.kernels import cpp_twin
from pa_tutorial.kernels.launch import prepare_v1

SMALL = Workload(2, 40, num_heads=2, num_kv_heads=2, head_size=32, block_size=8)
GQA = Workload(1, 24, num_heads=4, num_kv_heads=2, head_size=32, block_size=8)


ABSENT = "Triton is not installed"


@pytest.fixture(autouse=True)
def _simulated_twin(monkeypatch: pytest.MonkeyPatch) -> None:
    """And no Triton: what is done with it is in test_gpu_triton.py."""
    monkeypatch.setattr(variants, "run_twin", lambda prepared: prepared.run())
    monkeypatch.setattr(gpu_times, "why_absent", lambda: ABSENT)


def measure(pool: Pool, workload: Workload, device: Device) -> Row:
    return gpu_times.measure(pool, workload, device, Tuner(device, seconds=0))


def pool_for(workload: Workload) -> Pool:
    return Pool(workload, workload.num_blocks(CPU), CPU)


# Inputs that are not in a cache ----------------------------------------------------------------


def test_all_steps_together_are_larger_than_l2_and_share_no_block() -> None:
    pool, num_sets = pool_for(SMALL), SMALL.num_sets(CPU)
    sets = pool.sets(SMALL)
    assert len(sets) == num_sets > 2
    assert num_sets * SMALL.kv_bytes > TIMES_L2 * CPU.l2_bytes
    assert (num_sets - 1) * SMALL.kv_bytes <= TIMES_L2 * CPU.l2_bytes
    blocks = torch.cat([arguments["block_tables"].flatten() for arguments in sets])
    assert len(blocks.unique()) == len(blocks) == len(pool.v_cache)
    assert not torch.equal(sets[0]["q"], sets[1]["q"])
    assert SMALL.kv_bytes == sum(t.nbytes for t in (pool.k_cache, pool.v_cache)) // num_sets


def test_a_step_that_is_larger_than_l2_has_two_sets() -> None:
    assert Workload(64, 4096).num_sets(CPU) == 2
    assert Workload(64, 4096).kv_bytes == 2 * 64 * 4096 * 32 * 128 * 2


def test_a_pool_needs_its_bytes_twice_and_copies_what_a_step_reads() -> None:
    pool, num_blocks = pool_for(SMALL), SMALL.num_blocks(CPU)
    held = (pool.k_cache, pool.v_cache, *pool.copies)
    assert sum(t.nbytes for t in held) == Pool.num_bytes(SMALL, num_blocks)
    for copy in pool.copies:
        copy.fill_(torch.nan)
    for i in range(SMALL.num_sets(CPU)):
        k, v, *_ = pool.pieces(SMALL, i)
        assert k.nbytes + v.nbytes == SMALL.kv_bytes
        pool.copy(SMALL, i)()
    assert torch.equal(pool.copies[0], pool.k_cache)
    assert torch.equal(pool.copies[1], pool.v_cache)


# The steps -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PAGED)
@pytest.mark.parametrize("workload", [SMALL, GQA], ids=str)
def test_every_step_computes_attention(name: str, workload: Workload) -> None:
    arguments = pool_for(workload).sets(workload)[1]
    step = PAGED[name](arguments)
    assert worst_error(step(), reference(**arguments)) < 1e-3
    assert torch.equal(step(), step())


@pytest.mark.parametrize("workload", [SMALL, GQA], ids=str)
def test_torchs_own_steps_read_the_same_memory(workload: Workload) -> None:
    pool = pool_for(workload)
    heads = workload.num_seqs, workload.num_heads
    assert variants.sdpa(pool, workload, 1)().shape == (*heads, 1, 32)
    assert variants.kv_cache(pool, workload, 1)().shape == (heads[0], 1, heads[1], 32)
    for tensor in pool.contiguous(workload, 1):
        assert tensor.shape == (heads[0], workload.num_kv_heads, workload.seq_len, 32)
        piece = pool.pieces(workload, 1)
        assert tensor.data_ptr() in {t.data_ptr() for t in piece}


# The launch of the twin ------------------------------------------------------------------------


def test_twin_is_launched_on_torchs_stream_with_the_kernels_arguments(monkeypatch) -> None:
    asked = []

    class Twin:
        def __init__(self, geometry: object) -> None:
            self.geometry = geometry

        def __getitem__(self, configuration: tuple) -> Callable:
            return lambda *arguments: asked.append((self.geometry, configuration, arguments))

    monkeypatch.undo()
    monkeypatch.setattr(cpp_twin, "twin_kernel", Twin)
    stream = SimpleNamespace(cuda_stream=77)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: stream)
    prepared = prepare_v1(**pool_for(SMALL).sets(SMALL)[0])
    assert variants.run_twin(prepared) is prepared.out
    geometry, configuration, arguments = asked[0]
    assert geometry == prepared.geometry
    assert configuration == (prepared.grid, 128, 77, prepared.shared_bytes)
    assert all(a is b for a, b in zip(arguments, prepared.kernel_arguments, strict=True))
    long = dataclasses.replace(prepared, shared_bytes=48 * 1024)
    with pytest.raises(ValueError, match=r"shared_bytes is .*at most 49152, for a twin"):
        variants.run_twin(long)


# Measuring -------------------------------------------------------------------------------------


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> dict[str, Callable]:
    """Steps that cost no time: all give the right answer of set 0."""
    answer = torch.full((2, 2, 32), 3.0)
    monkeypatch.setattr(gpu_times, "reference", lambda **arguments: answer.double())
    steps = {name: lambda arguments: lambda: answer for name in PAGED}
    monkeypatch.setattr(gpu_times, "PAGED", steps)
    return steps


def test_fraction_is_bytes_read_by_bytes_copied(made) -> None:
    """The copy moves every byte twice: a step that takes half its time has its bandwidth."""
    num_sets = SMALL.num_sets(CPU)
    rows = measure(pool_for(SMALL), SMALL, timed_by(lambda function: 8.0))
    copy, v1 = rows["times"]["copy"], rows["times"]["cuda_v1"]
    assert copy["median_ms"] == round(8 / num_sets, 5)
    assert copy["fraction_of_copy"] == 1
    assert v1["fraction_of_copy"] == 0.5
    assert copy["GB_per_s"] == round(2 * SMALL.kv_bytes / (8 / num_sets) / 1e6, 1)
    assert rows["sets"] == num_sets
    assert not rows["wrong"]
    assert rows["left_out"] == {"triton": ABSENT}
    json.dumps(rows)


def test_a_step_that_is_slow_is_timed_once_and_never_captured(made) -> None:
    captured = []
    device = dataclasses.replace(
        timed_by(lambda function: 60.0),
        captured=lambda launches: captured.append(len(launches)) or launches[0],
    )
    rows = measure(pool_for(SMALL), SMALL, device)
    assert captured == [SMALL.num_sets(CPU)], "only the copy"
    assert rows["times"]["cuda_naive"]["rounds"] == 1
    assert rows["times"]["cuda_naive"]["median_ms"] == 60.0, "of one step, not of all"


def test_what_cannot_take_a_context_is_left_out_and_what_fails_is_wrong(made) -> None:
    def refuses(arguments: dict) -> None:
        raise ValueError("max_seq_len is 9; 5 at most\nmore")

    def fails(arguments: dict) -> None:
        raise RuntimeError("no device")

    made |= {"cuda_v1": refuses, "twin_v1": fails}
    made["cuda_v2"] = lambda arguments: lambda: torch.zeros(2, 2, 32)
    rows = measure(pool_for(SMALL), SMALL, timed_by(lambda function: 1.0))
    refused = "ValueError: max_seq_len is 9; 5 at most"
    assert rows["left_out"] == {"cuda_v1": refused, "triton": ABSENT}
    assert rows["wrong"] == {
        "twin_v1": "RuntimeError: no device",
        "cuda_v2": "its result has the error 1.0e+00",
    }
    assert "cuda_v1_vector" in rows["times"]
    assert "twin_v1" not in rows["times"]


def test_what_cannot_be_captured_is_wrong_and_the_rest_is_timed(made) -> None:
    def captured(launches: list) -> Callable:
        if len(captured_before) == 3:
            raise RuntimeError("not while capturing")
        captured_before.append(launches)
        return launches[0]

    captured_before: list = []
    device = dataclasses.replace(timed_by(lambda function: 1.0), captured=captured)
    rows = measure(pool_for(SMALL), SMALL, device)
    assert rows["wrong"]["cuda_v1_vector"] == "RuntimeError: not while capturing"
    assert {"copy", "cuda_naive", "cuda_v1"} <= rows["times"].keys()


def row_with(**fractions_and_ms: tuple[float, float]) -> dict[str, object]:
    times = {
        name: {"fraction_of_copy": fraction, "median_ms": ms}
        for name, (fraction, ms) in fractions_and_ms.items()
    }
    return {"workload": "w", "times": times}


def test_target_asks_for_the_bandwidth_and_for_the_twins_time() -> None:
    row = row_with(
        cuda_v1_vector=(0.9, 1.0), twin_v1=(0.9, 1.0), cuda_v2=(0.95, 1.05), twin_v2=(1.0, 1.0)
    )
    assert [t["reached"] for t in targets(row)] == [True, False]
    assert targets(row)[1]["times_the_twin"] == 1.05
    too_slow = row_with(cuda_v1_vector=(0.89, 1.0), twin_v1=(0.89, 1.0))
    assert [t["reached"] for t in targets(too_slow)] == [False]
    alone = row_with(cuda_v1_vector=(0.99, 1.0))
    assert targets(alone)[0] | {"reached": False} == targets(alone)[0], "nothing to compare with"


def test_workloads_are_those_of_the_issue_and_fit_an_h200() -> None:
    assert TARGETS == (Workload(64, 4096), Workload(64, 8192)) == WORKLOADS[:2]
    h200 = dataclasses.replace(CPU, l2_bytes=60 * 2**20, free_bytes=139 * 2**30)
    grouped = pools(WORKLOADS, h200)
    assert [len(group) for _, group in grouped] == [6, 2, 1]
    assert [w for _, group in grouped for w in group] == list(WORKLOADS)
    small = dataclasses.replace(h200, free_bytes=24 * 2**30)
    fit = [w for _, group in pools(WORKLOADS, small) for w in group]
    assert Workload(64, 8192) not in fit
    assert Workload(1, 512) in fit


def test_report_has_a_line_for_each_workload_the_target_and_the_launch_cost(
    made, monkeypatch, capsys
) -> None:
    monkeypatch.setattr(gpu_times, "TARGETS", (SMALL,))
    other = dataclasses.replace(GQA, num_seqs=2, num_heads=2)
    monkeypatch.setattr(gpu_times, "host_microseconds", lambda function, device: 12.3)
    device = timed_by(lambda function: 4.0)
    found = compare(seconds=60, device=device, workloads=(SMALL, other), rounds=1)
    said = capsys.readouterr().out.splitlines()
    assert len(said) == 2 + 2 + 1
    assert said[0].startswith(f"{SMALL}: copy ")
    assert "v1_vector 50, v2 50, twin_v1 50, twin_v2 50, sdpa 50 %" in said[0]
    assert said[2].startswith("target MISSED: cuda_v1_vector at 2 x 40")
    assert "50% of the copy, 1.0 times its twin's time" in said[2]
    assert "graph of cuda_v1_vector 12" in said[4]
    assert found["wrong"] == found["left_out"] == []
    json.dumps(found)


def test_what_there_is_no_time_for_is_named(made, capsys) -> None:
    found = compare(seconds=-1, device=CPU, workloads=(SMALL, GQA))
    assert found["left_out"] == [str(SMALL), str(GQA)]
    assert "left out, no time or no memory: 2 x 40" in capsys.readouterr().out


def test_launch_cost_is_the_hosts_time_without_the_wait() -> None:
    waited, called = [], []
    device = dataclasses.replace(CPU, synchronize=lambda: waited.append(len(called)))
    found = host_microseconds(lambda: called.append(1), device, rounds=5)
    assert found < 1000
    assert waited == [0, 1, 2, 3, 4, 5]


def test_all_of_it_runs_on_the_simulator(monkeypatch) -> None:
    few = {name: PAGED[name] for name in ("cuda_v1_vector", "cuda_v2", "twin_v1")}
    monkeypatch.setattr(gpu_times, "PAGED", few)
    monkeypatch.setattr(gpu_times, "host_microseconds", lambda run, device: (run(), 1.0)[1])
    tiny = dataclasses.replace(CPU, l2_bytes=1)
    workload = Workload(16, 8, num_heads=1, num_kv_heads=1, head_size=32, block_size=8)
    found = compare(seconds=60, device=tiny, workloads=(workload,), rounds=1)
    assert not found["wrong"]
    times = found["workloads"][0]["times"]
    assert times.keys() == {*few, "copy", "sdpa", "kv_cache", *variants.IN_TORCH}
    assert all(row["median_ms"] > 0 for row in times.values())
