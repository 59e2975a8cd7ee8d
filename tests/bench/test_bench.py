"""The measurements run, name the machine and write what they say they write."""

import json
import platform
from collections.abc import Callable
from functools import partial

import numpy as np
import torch

from pa_tutorial.bench import gpu_kernels
from pa_tutorial.bench.block_manager_bench import (
    BLOCK_SIZE,
    MAX_TOKENS,
    OPERATIONS,
    PROMPT_LEN,
    AppendTokens,
    LookUpPrompt,
    all_named,
    bytes_per_block,
    time_per_operation,
)
from pa_tutorial.bench.machine import describe_machine, report
from pa_tutorial.bench.next_token import DecodeStep, next_token
from pa_tutorial.bench.process_pool import Done
from pa_tutorial.bench.simulator import against_numba, by_size, peak_megabytes, tracing
from pa_tutorial.bench.timing import interleaved, write_results
from pa_tutorial.walk.problem import SequenceProblem


def test_interleaved_runs_everything_once_more_than_it_counts() -> None:
    calls = []
    times = interleaved({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, rounds=5)
    assert calls.count("a") == calls.count("b") == 6
    for row in times.values():
        assert 0 <= row["lowest_ms"] <= row["median_ms"] <= row["highest_ms"]
    pairs = [tuple(calls[i : i + 2]) for i in range(0, len(calls), 2)]
    assert all(set(pair) == {"a", "b"} for pair in pairs), "each round runs each once"


def test_measured_decode_step_computes_the_same_token_every_time() -> None:
    model = SequenceProblem("", "", "").model()
    tokens = torch.arange(9)
    step = DecodeStep(model, tokens)
    first, second = step(), step()
    assert torch.equal(first, second)
    assert torch.allclose(first[-1], model(tokens)[-1], atol=1e-3)


def test_next_token_gives_a_row_for_each_length(capsys) -> None:
    rows = next_token((4, 8), rounds=1)
    assert [row["seq_len"] for row in rows] == [4, 8]
    assert "8 tokens" in capsys.readouterr().out


def test_results_name_the_machine(tmp_path) -> None:
    path = write_results({"x": 1}, "Some CPU (R) @ 2 GHz", tmp_path)
    assert path.name == "some-cpu-r-2-ghz.json"
    written = json.loads(path.read_text(encoding="utf-8"))
    assert written == {"machine": describe_machine(), "x": 1}
    assert written["machine"]["torch"] == torch.__version__
    assert written["machine"]["python"] == platform.python_version()
    assert torch.__version__ in report()


def test_block_manager_is_measured_for_each_operation_and_pool(capsys) -> None:
    rows = time_per_operation((1_000, 2_000), rounds=2)
    assert [row["num_blocks"] for row in rows] == [1_000, 2_000] * len(OPERATIONS)
    assert {row["operation"] for row in rows} == set(OPERATIONS)
    assert all(0 < row["us"] < 500 for row in rows), "of one operation, not of all"
    assert "2,000 blocks" in capsys.readouterr().out


def test_sequences_that_are_measured_fit_into_the_smallest_pool() -> None:
    append = AppendTokens(1_000)
    for _ in range(100):
        append()
    assert append.allocator.num_free >= 0
    assert max(table.num_tokens for table in append.tables) <= MAX_TOKENS


def test_a_cached_prompt_is_found_when_it_is_measured() -> None:
    look_up = LookUpPrompt(1_000)
    look_up()
    assert look_up.allocator.num_cached == PROMPT_LEN // BLOCK_SIZE
    assert all_named(300).num_cached == 299


def test_names_take_memory() -> None:
    sizes = bytes_per_block(500)
    assert 16 < sizes["plain"] < sizes["all blocks named"]


def test_simulator_is_twenty_times_faster_than_numbas_with_every_check(capsys) -> None:
    result = against_numba(rounds=1)
    assert result["times_faster"]["all checks"] >= 20
    assert set(result["times"]) > {"numba", "unchecked"}
    assert "times faster" in capsys.readouterr().out


def test_cost_of_simulating_grows_no_faster_than_the_work(capsys) -> None:
    """Four times the threads, tokens or thread blocks: at most four times the time, and noise."""
    times = by_size(rounds=3)
    for name in ("tokens 512", "tokens 2048", "thread blocks 4", "thread blocks 16"):
        smaller = name.rsplit(" ", 1)[0] + f" {int(name.rsplit(' ', 1)[1]) // 4}"
        assert times[name] < 4 * 1.6 * times[smaller]
    assert times["threads 512"] < 16 * times["threads 32"]
    assert "tokens 2048" in capsys.readouterr().out


def test_a_trace_costs_at_most_six_unchecked_runs(capsys) -> None:
    """That only the chosen thread blocks pay is tested by what is recorded: test_simt_trace."""
    ratios = tracing(rounds=1)["times_unchecked"]
    assert ratios["one thread block"]["one traced"] <= 6
    assert ratios["16 thread blocks"].keys() == ratios["one thread block"].keys()
    assert "times the unchecked run" in capsys.readouterr().out


def test_a_checked_thread_block_needs_little_memory() -> None:
    assert peak_megabytes(num_threads=128, num_tokens=1024) < 500


def here(work: Callable, groups: list, workers: int, seconds: float) -> Done:
    """In place of run_in_pool, in this process; for the last group there is no time."""
    *all_but_last, last = enumerate(groups)
    return Done({place: work(group) for place, group in all_but_last}, left_out=[last[0]])


def test_kernels_are_compared_with_the_simulator(monkeypatch, capsys) -> None:
    """Without a GPU, the simulator itself and a broken device stand in for it."""
    monkeypatch.setattr(gpu_kernels, "run_in_pool", here)
    simulated = partial(gpu_kernels.differences, run=gpu_kernels.simulate)
    result = gpu_kernels.compare(seconds=60, work=simulated)
    assert result["different"] == {}
    assert result["wrong"] == []
    assert result["equal"] > 60
    assert len(result["left_out"]) < 6 + gpu_kernels.AT_ONCE
    assert "no time" in result["left_out"].values()
    assert result["equal"] + len(result["left_out"]) == len(gpu_kernels.examples())

    def broken(example, args) -> None:
        gpu_kernels.simulate(example, args)
        for array in args:
            if isinstance(array, np.ndarray) and array.flags.writeable:
                array[...] = 77

    result = gpu_kernels.compare(seconds=60, work=partial(gpu_kernels.differences, run=broken))
    assert result["equal"] == 0
    assert list(result["different"]) == result["wrong"]
    assert "differ" in capsys.readouterr().out


def test_kernels_whose_process_died_are_named(monkeypatch) -> None:
    died = Done(failed={0: "its process ended with exit code -11"})
    monkeypatch.setattr(gpu_kernels, "run_in_pool", lambda *arguments: died)
    result = gpu_kernels.compare(seconds=60)
    assert len(result["wrong"]) == 1
    assert list(result["failed"].values()) == ["its process ended with exit code -11"]
    assert gpu_kernels.differences.__defaults__ == (gpu_kernels.on_the_gpu,)
