"""What `make gpu` does with the ladder, with the CPU and the simulator in the GPU's place."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from kernel_inputs import problem
from torch import Tensor

from pa_tutorial.bench import gpu_ladder
from pa_tutorial.bench.gpu_ladder import KERNELS, kernels_here, moved, on_device, wrong_in
from pa_tutorial.bench.process_pool import Done
from pa_tutorial.walk.calls import takes
from pa_tutorial.walk.cases import CASES
from pa_tutorial.walk.ladder import STAGES

NAMES = ("decode/worked_example", "decode/bfloat16", "decode/strided_q_float16")


def test_right_kernels_pass() -> None:
    assert wrong_in(NAMES, "cpu") == {name: {} for name in kernels_here()}


@pytest.mark.triton
def test_triton_is_among_them_and_judged(monkeypatch) -> None:
    stage = STAGES["triton"]

    def one_element_is_wrong(*arguments: object, **options: object) -> Tensor:
        out = stage.function(*arguments, **options)
        out[0, 0, 0] += 1
        return out

    one_element_is_wrong.__wrapped__ = stage.function
    monkeypatch.setitem(STAGES, "triton", replace(stage, at=one_element_is_wrong))
    assert "should be" in wrong_in(NAMES[:1], "cpu")["triton"][NAMES[0]]


def test_where_triton_is_absent_the_others_run_and_the_reason_is_said(
    monkeypatch, spread_gives, capsys
) -> None:
    absent = replace(STAGES["triton"], absence=lambda: "no wheels for it")
    monkeypatch.setitem(STAGES, "triton", absent)
    assert wrong_in(NAMES[:1], "cpu") == {name: {} for name in KERNELS if name != "triton"}
    spread_gives(Done())
    found = gpu_ladder.compare(seconds=1)
    assert found["triton"] == {"not_run": "no wheels for it"}
    assert found["wrong"] == []
    assert "triton: not run: no wheels for it" in capsys.readouterr().out


def test_a_wrong_kernel_is_named_with_its_cases(monkeypatch) -> None:
    stage = STAGES["cuda_v1"]

    def without_the_last_element(*tensors: object) -> Tensor:
        out = stage.function(*tensors)
        out[..., -1] = 0
        return out

    monkeypatch.setitem(STAGES, "cuda_v1", replace(stage, at=without_the_last_element))
    found = wrong_in(NAMES[:1], "cpu")
    assert "should be" in found["cuda_v1"][NAMES[0]]
    assert found["cuda_v1_vector"], "it is held against the stage before"
    assert not found["cuda_naive"]


def test_what_a_kernel_raises_is_a_diagnosis(monkeypatch) -> None:
    def refuses(*tensors: object) -> Tensor:
        raise RuntimeError("no such device")

    monkeypatch.setitem(STAGES, "cuda_v2", replace(STAGES["cuda_v2"], at=refuses))
    assert "no such device" in wrong_in(NAMES[:1], "cpu")["cuda_v2"][NAMES[0]]


def test_all_kernels_run_on_the_device_and_no_other_stage(monkeypatch) -> None:
    """Those that they are held against too, where these are kernels."""
    there = []

    def on_device(function: Callable, device: str) -> Callable:
        there.append((function.__name__, device))
        return gpu_ladder.STAGES["paged_gather"].function

    for name in KERNELS:  # Triton too, where it is absent
        present = replace(STAGES[name], absence=lambda: None)
        monkeypatch.setitem(STAGES, name, present)
    monkeypatch.setattr(gpu_ladder, "on_device", on_device)
    assert wrong_in(NAMES[:1], "there").keys() == set(KERNELS)
    naive, v1, vector, v2, triton = (STAGES[name].function.__name__ for name in KERNELS)
    expected = (naive, v1, naive, vector, v1, v2, vector, triton)
    assert there == [(name, "there") for name in expected]


def test_tensors_are_copied_with_their_gaps() -> None:
    q = problem(strided_q=True).paged("vllm").q
    assert not q.is_contiguous()
    copy = moved(q, "cpu")
    assert copy.stride() == q.stride()
    assert torch.equal(copy, q)
    assert copy.data_ptr() != q.data_ptr()
    assert moved(q[1:], "cpu").storage_offset() == q.stride(0)


def test_result_comes_back_and_no_probe_goes_there() -> None:
    asked = []

    def function(q: Tensor, scale: float, probe: dict | None = None, partition_size: int = 1):
        asked.append((q.device.type, scale, partition_size))
        return torch.zeros(q.shape)

    there = on_device(function, "meta")
    assert takes(there, "partition_size")
    assert not takes(there, "probe")
    assert there(torch.ones(2), 0.5, partition_size=8).device.type == "cpu"
    assert asked == [("meta", 0.5, 8)]


def test_every_case_is_in_one_share() -> None:
    ids = [case_id for group in gpu_ladder.shares() for case_id in group]
    for name in ("cuda_v2", "triton"):
        expected = {case.id for case in CASES.values() if STAGES[name].is_checked_on(case)}
        assert len(ids) == len(expected)
        assert set(ids) == expected
    for group in gpu_ladder.shares():
        assert len({gpu_ladder.of_one_kernel(CASES[case_id]) for case_id in group}) == 1


@pytest.fixture
def spread_gives(monkeypatch) -> Callable[[Done], None]:
    return lambda done: monkeypatch.setattr(gpu_ladder, "run_in_pool", lambda *arguments: done)


def test_report_counts_what_passed_differed_failed_and_was_left_out(spread_gives, capsys) -> None:
    groups = gpu_ladder.shares()
    right: dict[str, dict[str, str]] = {name: {} for name in kernels_here()}
    done = Done({place: right for place in range(3, len(groups))})
    done.results[2] = right | {"cuda_v2": {groups[2][0]: "why\nand more"}}
    done.failed[1], done.left_out = "its process ended with exit code -11", [0]
    spread_gives(done)
    found = gpu_ladder.compare(seconds=1)
    total = sum(len(group) for group in groups[2:])
    assert found["cuda_v1"] == {"passed": total, "different": {}}
    assert found["cuda_v2"] == {"passed": total - 1, "different": {groups[2][0]: "why\nand more"}}
    assert found["wrong"] == [f"cuda_v2 {groups[2][0]}", " ".join(groups[1])]
    assert found["left_out"] == list(groups[0])
    said = capsys.readouterr().out
    assert f"cuda_v2: {total - 1} of {total} cases pass\n  {groups[2][0]}: why\n" in said
    assert "exit code -11" in said
    assert f"left out, no time: {len(groups[0])} cases" in said


def test_cases_run_on_cuda_in_processes_of_their_own(monkeypatch) -> None:
    asked = []

    def run_in_pool(work: Callable, items: list, workers: int, seconds: float) -> Done:
        asked.append((work, items, workers, seconds))
        return Done()

    monkeypatch.setattr(gpu_ladder, "run_in_pool", run_in_pool)
    gpu_ladder.compare(seconds=7)
    assert asked == [(wrong_in, gpu_ladder.shares(), gpu_ladder.WORKERS, 7)]
    assert wrong_in.__defaults__ == ("cuda",)
