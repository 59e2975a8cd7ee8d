"""Which setting of the Triton kernels is taken, and what is said of the others; no GPU here."""

import dataclasses
import json
from collections.abc import Callable, Sequence
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from fake_gpu import CPU, timed_by
from torch import Tensor

from pa_tutorial.bench import gpu_times, gpu_triton, sections
from pa_tutorial.bench.cold_batches import Pool, Workload
from pa_tutorial.bench.device import Device, Function
from pa_tutorial.bench.gpu_triton import NO_TIME, SETTINGS, TRIES, Setting, Tuner, why_not_timed
from pa_tutorial.kernels.triton_launch import NUM_WARPS, usual_tile

FIRST, SECOND, THIRD = (Setting(16, 1, size) for size in (8, 16, 24))
ALL = FIRST, SECOND, THIRD
WORKLOAD = Workload(4, 16, num_heads=2, num_kv_heads=1, head_size=32, block_size=8)
SETS = [{"set": 0}, {"set": 1}]
RIGHT, WRONG = torch.ones(2), torch.zeros(2)

SIZES = ("tile_size", "num_warps", "partition_size", "num_stages")

Made = dict[Setting, Callable[[], Tensor]]


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Made:
    """What a launch by each setting does, in the place of Triton: all give the right result."""
    runs: Made = dict.fromkeys(ALL, lambda: RIGHT)

    def prepare(**arguments: object) -> object:
        setting = Setting(*(arguments[name] for name in SIZES))
        return SimpleNamespace(run=lambda: runs[setting]())

    monkeypatch.setattr(gpu_triton, "prepare_triton", prepare)
    return runs


def taking(*milliseconds: float) -> Device:
    """A device on which the captured steps take so long, in the order in which they come."""
    to_come = iter(milliseconds)

    def captured(launches: Sequence[Function]) -> Function:
        assert len(launches) == len(SETS), "a replay runs the steps of all sets"
        return SimpleNamespace(ms=next(to_come))

    device = timed_by(lambda replay: replay.ms)
    return dataclasses.replace(device, captured=captured)


def whats_wrong(out: Tensor) -> str | None:
    return None if torch.equal(out, RIGHT) else "it is wrong"


def raising(error: Exception) -> Callable[[], Tensor]:
    def run() -> Tensor:
        raise error

    return run


# The settings ----------------------------------------------------------------------------------


def test_settings_are_few_and_begin_with_the_usual_one() -> None:
    assert len(SETTINGS) == len(set(SETTINGS)) <= 8
    assert SETTINGS[0] == Setting(usual_tile(128, 2), NUM_WARPS, 512)
    compiled = {dataclasses.replace(setting, partition_size=1) for setting in SETTINGS}
    assert len(compiled) <= 7, "each of these takes a second, for each kind of blocks"


@pytest.mark.triton
def test_every_setting_compiles_and_the_gpus_of_the_targets_have_the_memory() -> None:
    from pa_tutorial.kernels.triton_compiled import compile_call
    from pa_tutorial.kernels.triton_launch import prepare_triton

    cache = torch.zeros(4, 1, 16, 128, dtype=torch.float16)
    numbers = torch.zeros(1, 4, dtype=torch.int32), torch.full((1,), 64, dtype=torch.int32)
    arguments = torch.zeros(1, 1, 128, dtype=torch.float16), cache, cache.clone(), *numbers, 1.0
    for setting in SETTINGS:
        prepared = prepare_triton(*arguments, **dataclasses.asdict(setting))
        kernel = compile_call(prepared.partitions)
        assert kernel.shared_bytes <= 163 * 1024, f"{setting}: more than an A100 has"
        assert kernel.stack_bytes == 0, f"{setting}: not all fits into registers"


# Tuning ----------------------------------------------------------------------------------------


def test_the_fastest_setting_is_taken(made: Made) -> None:
    found = Tuner(taking(5.0, 3.0, 4.0), 60, ALL).tune(SETS, whats_wrong)
    assert found.chosen == SECOND
    assert len(found.steps) == len(SETS)
    assert found.ms == {str(FIRST): 5.0, str(SECOND): 3.0, str(THIRD): 4.0}
    assert not found.left_out
    assert not found.wrong
    row = json.loads(json.dumps(found.row))
    sizes = {"tile_size": 16, "num_warps": 1, "partition_size": 16, "num_stages": 3}
    assert row["chosen"] == sizes


def test_all_settings_are_timed_in_the_same_rounds(made: Made) -> None:
    timed = []
    device = dataclasses.replace(
        timed_by(lambda replay: timed.append(replay) or 1.0), captured=lambda made: made[0]
    )
    Tuner(device, 60, ALL).tune(SETS, whats_wrong)
    rounds = [timed[i : i + len(ALL)] for i in range(0, len(timed), len(ALL))]
    assert len(rounds) == TRIES + 1
    assert all(len(set(each)) == len(ALL) for each in rounds)


@pytest.mark.triton
def test_what_the_gpu_refuses_is_left_out_with_its_reason(made: Made) -> None:
    from triton.runtime.errors import OutOfResources

    made[FIRST] = raising(OutOfResources(232_448, 101_376, "shared memory"))
    found = Tuner(taking(5.0, 3.0), 60, ALL).tune(SETS, whats_wrong)
    assert found.chosen == THIRD
    assert "shared memory" in found.left_out[str(FIRST)]
    assert not found.wrong


@pytest.mark.triton
def test_if_all_are_refused_that_is_a_failure(made: Made) -> None:
    from triton.runtime.errors import OutOfResources

    made |= dict.fromkeys(ALL, raising(OutOfResources(9, 8, "threads")))
    found = Tuner(taking(), 60, ALL).tune(SETS, whats_wrong)
    assert found.chosen is None
    assert found.steps == []
    assert found.wrong["triton"].startswith("no setting can be run: OutOfResources: ")
    assert found.row["chosen"] is None


@pytest.mark.triton
def test_what_fails_or_is_wrong_is_named_and_never_taken(made: Made) -> None:
    made |= {FIRST: lambda: WRONG, SECOND: raising(RuntimeError("no such\naddress"))}
    found = Tuner(taking(5.0), 60, ALL).tune(SETS, whats_wrong)
    assert found.chosen == THIRD
    assert found.wrong == {
        f"triton {FIRST}": "it is wrong",
        f"triton {SECOND}": "RuntimeError: no such",
    }
    assert found.ms.keys() == {str(THIRD)}


def test_without_time_the_setting_of_the_workload_before_is_taken(made: Made) -> None:
    tuner = Tuner(taking(5.0, 3.0, 4.0, 3.0), 60, ALL)
    assert tuner.tune(SETS, whats_wrong).chosen == SECOND
    assert 0 < tuner.seconds < 60, "what the workload took is gone"
    tuner.seconds = -1.0
    found = tuner.tune(SETS, whats_wrong)
    assert found.chosen == SECOND
    assert found.left_out == {str(FIRST): NO_TIME, str(THIRD): NO_TIME}
    assert not found.wrong


# Among the others ------------------------------------------------------------------------------


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """No CUDA kernel, and two settings."""
    monkeypatch.setattr(gpu_times, "PAGED", {})
    monkeypatch.setattr(gpu_times, "why_absent", lambda: None)
    monkeypatch.setattr(gpu_times, "launch_cost", lambda *arguments: {})
    monkeypatch.setattr(gpu_times, "Tuner", partial(Tuner, settings=ALL[:2]))
    monkeypatch.setattr(gpu_times, "SLOW_MS", 1e9)  # the interpreter is slow


@pytest.mark.triton
def test_the_interpreted_kernels_are_right_over_the_pools_memory(few: None, capsys) -> None:
    tiny = dataclasses.replace(CPU, l2_bytes=1)
    found = gpu_times.compare(seconds=60, device=tiny, workloads=(WORKLOAD,), rounds=1)
    assert not found["wrong"]
    (row,) = found["workloads"]
    assert row["times"]["triton"].keys() == row["times"]["sdpa"].keys()
    assert row["times"]["triton"]["median_ms"] > 0
    assert row["triton_settings"]["ms"].keys() == {str(FIRST), str(SECOND)}
    chosen = Setting(**row["triton_settings"]["chosen"])
    assert f" ({chosen}), sdpa " in capsys.readouterr().out
    json.dumps(found)


def test_triton_reads_the_pools_memory_as_a_plain_cache(few: None, monkeypatch) -> None:
    prepared_with = []

    def prepare(**arguments: object) -> object:
        prepared_with.append(arguments)
        out = gpu_times.reference(**{n: arguments[n] for n in arguments if n not in SIZES})
        return SimpleNamespace(run=lambda: out)

    monkeypatch.setattr(gpu_triton, "prepare_triton", prepare)
    pool = Pool(WORKLOAD, WORKLOAD.num_blocks(CPU), CPU)
    row = gpu_times.measure(pool, WORKLOAD, CPU, gpu_times.Tuner(CPU, 60), rounds=1)
    assert not row["wrong"]
    assert "triton" in row["times"]
    for arguments in prepared_with:
        assert arguments["k_cache"].data_ptr() == pool.k_cache.data_ptr()
        assert arguments["v_cache"].data_ptr() == pool.v_cache.data_ptr()
        assert arguments["v_cache"].shape == (len(pool.v_cache), 1, 8, 32)
    assert {a["partition_size"] for a in prepared_with} == {8, 16}
    assert len(prepared_with) == 2 * WORKLOAD.num_sets(CPU)


def test_a_wrong_result_is_a_failure_of_the_section(few: None, monkeypatch, capsys) -> None:
    shape = WORKLOAD.num_seqs, WORKLOAD.num_heads, WORKLOAD.head_size
    wrong = SimpleNamespace(run=lambda: torch.zeros(shape))
    monkeypatch.setattr(gpu_triton, "prepare_triton", lambda **arguments: wrong)
    tiny = dataclasses.replace(CPU, l2_bytes=1)
    found = gpu_times.compare(seconds=60, device=tiny, workloads=(WORKLOAD,), rounds=1)
    why = "its result has the error 1.0e+00"
    assert found["wrong"] == [f"{WORKLOAD} triton {setting}: {why}" for setting in ALL[:2]]
    assert "triton" not in found["workloads"][0]["times"]
    assert why in capsys.readouterr().out


def test_tuning_has_a_part_of_the_seconds(monkeypatch) -> None:
    asked = []
    monkeypatch.setattr(gpu_times, "Tuner", lambda *arguments: asked.append(arguments))
    gpu_times.compare(seconds=100, device=CPU, workloads=())
    assert asked == [(CPU, 25.0)]


# `make bench` ----------------------------------------------------------------------------------


def test_why_there_are_no_times_is_one_line(monkeypatch, capsys) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(gpu_triton, "why_absent", lambda: None)
    why = "no GPU here, and in Triton's interpreter a time says nothing about the kernel"
    assert sections.triton(1, True) == {"left_out": why}
    assert capsys.readouterr().out == f"left out: {why}\n"
    monkeypatch.setattr(gpu_triton, "why_absent", lambda: "no wheels for it")
    assert why_not_timed() == "no wheels for it"


@pytest.mark.parametrize("quick", [False, True])
def test_with_a_gpu_the_same_is_timed_as_by_make_gpu(quick: bool, monkeypatch, capsys) -> None:
    asked = []

    def compare(seconds: float, workloads: tuple[Workload, ...], rounds: int) -> dict:
        asked.append((seconds, workloads, rounds))
        return {"workloads": []}

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "Stand-in")
    monkeypatch.setattr(gpu_triton, "why_absent", lambda: None)
    monkeypatch.setattr(gpu_times, "compare", compare)
    assert sections.triton(7, quick) == {"gpu": "Stand-in", "workloads": []}
    ((seconds, workloads, rounds),) = asked
    assert (seconds, rounds) == (sections.GPU_SECONDS, 7)
    assert workloads == ((Workload(1, 512),) if quick else sections.ON_A_GPU)
    assert set(sections.ON_A_GPU) < set(gpu_times.WORKLOADS)
    assert "Stand-in" in capsys.readouterr().out
