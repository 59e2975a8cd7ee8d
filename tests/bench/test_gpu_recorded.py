"""Outputs recorded from the simulator: the file is what it gives now, and a GPU is held to it."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from pa_tutorial.bench import gpu_recorded, record
from pa_tutorial.bench.gpu_recorded import (
    TOLERANCE,
    compare,
    differences,
    different_in,
    error,
)
from pa_tutorial.bench.process_pool import Done
from pa_tutorial.bench.record import IDS, KERNELS, checksum, load, outputs, recorded
from pa_tutorial.walk.cases import CASES

SMALL = "decode/worked_example"


@pytest.mark.parametrize("case_id", IDS)
def test_file_is_what_the_simulator_gives_now(case_id: str) -> None:
    """But for the last digit: the exp of NumPy is not the same on every processor."""
    arrays = load()
    for kernel in KERNELS:
        expected, found = recorded(case_id, kernel, arrays), outputs(case_id, kernel)
        assert expected.keys() == found.keys()
        for name, tensor in found.items():
            assert tensor.dtype == expected[name].dtype
            assert error(tensor, expected[name]) <= TOLERANCE[tensor.dtype] / 4


def test_file_has_all_dtypes_layouts_and_partitions_and_is_small() -> None:
    cases = [CASES[case_id] for case_id in IDS]
    assert {case.dtype for case in cases} == set(TOLERANCE)
    assert {case.block_size for case in cases} == {8, 16, 32}
    assert any(case.alibi for case in cases)
    assert any(case.strided_q for case in cases)
    assert any(case.num_heads > case.num_kv_heads > 1 for case in cases)
    assert record.FILE.stat().st_size <= 100_000
    assert len(load()) == 6 * len(IDS)


def test_v2_is_recorded_with_what_it_leaves_for_the_reduce_kernel() -> None:
    found = recorded("decode/alibi_block_size_8", "v2", load())
    assert found["exp_sums"].shape == found["max_logits"].shape == (2, 6, 3)
    assert found["tmp_out"].shape == (2, 6, 3, 64)
    assert found["out"].shape == (2, 6, 64)
    assert found["tmp_out"][1, :, 2].isnan().all(), "the shorter sequence has two partitions"


def test_other_inputs_than_those_of_the_file_are_seen() -> None:
    arrays = load() | {f"{SMALL} inputs": checksum(SMALL) + 1}
    with pytest.raises(ValueError, match="inputs of decode/worked_example are not those of"):
        recorded(SMALL, "v1", arrays)


def test_the_same_numbers_are_equal() -> None:
    assert different_in(SMALL, "cpu") == {}
    assert different_in.__defaults__ == ("cuda",)


def test_a_device_that_computes_something_else_is_named(monkeypatch) -> None:
    def broken(case_id: str, kernel: str, device: str) -> dict[str, Tensor]:
        assert device == "there"
        found = outputs(case_id, kernel)
        if kernel == "v2":
            found["exp_sums"] = found["exp_sums"] * 1.001
        return found

    monkeypatch.setattr(gpu_recorded, "outputs", broken)
    assert different_in(SMALL, "there") == {"v2": {"exp_sums": "1.0e-03"}}


def test_report(monkeypatch, capsys) -> None:
    def run_in_pool(work: Callable, items: tuple[str, ...], workers: int, seconds: float) -> Done:
        assert (work, items, workers, seconds) == (different_in, IDS, gpu_recorded.WORKERS, 9)
        results = {place: {} for place in range(2, len(IDS) - 1)}
        return Done(results | {0: {"v2": {"out": "1.0e-01"}}}, {1: "it died"}, [len(IDS) - 1])

    monkeypatch.setattr(gpu_recorded, "run_in_pool", run_in_pool)
    found = compare(seconds=9)
    assert found["wrong"] == [f"v2 {IDS[0]}", IDS[1]]
    assert found["equal"] == 3 * (len(IDS) - 2) - 1
    said = capsys.readouterr().out
    assert said.startswith("29 of 36 launches give what the simulator gave\n")
    assert "it died" in said
    assert f"left out, no time: {IDS[-1]}" in said


def test_nan_must_stand_in_the_same_places() -> None:
    expected = torch.ones(2, 3)
    expected[1] = torch.nan
    assert error(expected.clone(), expected) == 0
    assert error(torch.ones(2, 3), expected) == float("inf")
    assert error(torch.full((2, 3), torch.nan), expected) == float("inf")
    assert error(torch.ones(2, 2), expected) == float("inf")


def test_tolerance_is_one_unit_in_the_last_place_of_the_narrow_types() -> None:
    for dtype in (torch.float16, torch.bfloat16):
        expected = torch.full((4,), 1.0, dtype=dtype)
        next_one = torch.full((4,), 1 + torch.finfo(dtype).eps, dtype=dtype)
        assert not differences({"out": next_one}, {"out": expected})
        two_on = torch.full((4,), 1 + 2 * torch.finfo(dtype).eps, dtype=dtype)
        assert differences({"out": two_on}, {"out": expected})
