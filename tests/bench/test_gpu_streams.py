"""Streams, graphs and shared memory: what `make gpu` checks, and that each check can fail."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from fake_gpu import CPU
from torch import Tensor

from pa_tutorial.bench import gpu_streams
from pa_tutorial.bench.gpu_streams import (
    ON_CPU,
    compare,
    graph_reads_new_numbers,
    nobody_waits,
    runs_on_the_current_stream,
    too_long_is_refused,
)
from pa_tutorial.bench.variants import PAGED

NAME = "cuda_v1_vector"


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short sequences, and little shared memory: the simulator takes its time."""
    monkeypatch.setattr(gpu_streams, "MAX_SEQ_LEN", 140)


def test_right_launches_pass(monkeypatch, capsys) -> None:
    monkeypatch.setattr(gpu_streams, "NAMES", (NAME,))
    short = gpu_streams.CHECKS[:3]
    monkeypatch.setattr(gpu_streams, "CHECKS", short)
    found = compare(seconds=9, device=CPU, streams=ON_CPU)
    assert found["wrong"] == []
    assert len(found["passed"]) == 3
    assert "3 of 3 checks" in capsys.readouterr().out
    assert compare.__defaults__ == (None, gpu_streams.ON_GPU)


def test_a_launch_on_another_stream_reads_too_early(monkeypatch) -> None:
    """The stand-in keeps its result from before q arrived."""

    def early(arguments: dict) -> Callable[[], Tensor]:
        step = PAGED[NAME](arguments)
        outs: list[Tensor] = []

        def run() -> Tensor:
            outs.append(step().clone())
            return outs[-1] if len(outs) == 1 else torch.full_like(outs[0], torch.nan)

        return run

    monkeypatch.setattr(gpu_streams, "PAGED", {NAME: early})
    with pytest.raises(AssertionError, match="its result has the error inf"):
        runs_on_the_current_stream(NAME, CPU, ON_CPU)


def test_q_arrives_late() -> None:
    """Between the first launch and the one that counts, q holds NaN."""
    seen = []

    def watched(arguments: dict) -> Callable[[], Tensor]:
        step = PAGED[NAME](arguments)

        def run() -> Tensor:
            seen.append(bool(arguments["q"].isnan().any()))
            return step()

        return run

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gpu_streams, "PAGED", {NAME: watched})
        q_during_busy = []
        batches = []
        original = gpu_streams.batch
        patch.setattr(gpu_streams, "batch", lambda d: batches.append(original(d)) or batches[-1])
        busy = replace(
            ON_CPU, busy=lambda: q_during_busy.append(bool(batches[0]["q"].isnan().all()))
        )
        runs_on_the_current_stream(NAME, CPU, busy)
    assert q_during_busy == [True]
    assert seen == [False, False]


def test_a_launch_that_waits_is_seen(monkeypatch) -> None:
    monkeypatch.setattr(gpu_streams, "PAGED", {NAME: lambda arguments: lambda: None})
    with pytest.raises(AssertionError, match="it waited"):
        nobody_waits(NAME, CPU, replace(ON_CPU, idle=lambda: True))
    nobody_waits(NAME, CPU, ON_CPU)


def test_a_graph_that_keeps_old_numbers_is_seen() -> None:
    device = replace(CPU, captured=lambda launches: lambda: None)
    with pytest.raises(AssertionError, match="its result has the error"):
        graph_reads_new_numbers(NAME, device, ON_CPU)


def test_a_context_beyond_the_memory_must_be_refused(monkeypatch) -> None:
    monkeypatch.setattr(gpu_streams, "most_shared", lambda tensor: 400)
    with pytest.raises(AssertionError, match="116 tokens were not refused"):
        too_long_is_refused(NAME, CPU, ON_CPU)


def test_a_context_beyond_the_memory_is_refused() -> None:
    """By the simulator's limit."""
    too_long_is_refused(NAME, CPU, ON_CPU)


def test_v2_takes_what_is_too_long_for_v1(monkeypatch) -> None:
    monkeypatch.setattr(gpu_streams, "most_shared", lambda tensor: 4 * 530)
    too_long_is_refused("cuda_v2", CPU, ON_CPU)


def test_much_shared_memory_is_asked_for(monkeypatch) -> None:
    asked = []
    right = torch.ones(2, 4, 64, dtype=torch.float16)
    monkeypatch.setattr(gpu_streams, "reference", lambda **arguments: right.double())
    monkeypatch.setattr(
        gpu_streams, "PAGED", {NAME: lambda arguments: asked.append(arguments) or (lambda: right)}
    )
    gpu_streams.more_than_48_kib(NAME, CPU, ON_CPU)
    assert 4 * int(asked[0]["seq_lens"].max()) > 48 * 1024


def test_what_fails_is_a_line_and_the_others_go_on(monkeypatch, capsys) -> None:
    def refuses(arguments: dict) -> None:
        raise RuntimeError("no such stream\nmore")

    monkeypatch.setattr(gpu_streams, "PAGED", {**PAGED, NAME: refuses})
    monkeypatch.setattr(gpu_streams, "CHECKS", (nobody_waits,))
    found = compare(seconds=9, device=CPU, streams=ON_CPU)
    line = f"{NAME} nobody_waits: RuntimeError: no such stream"
    assert found == {"passed": ["cuda_v2 nobody_waits"], "wrong": [line]}
    assert line in capsys.readouterr().out
