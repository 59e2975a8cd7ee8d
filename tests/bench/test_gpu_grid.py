"""What `make gpu` does with vLLM's grid, with the CPU and the simulator in the GPU's place."""

from collections.abc import Callable

import pytest
import torch
from kernel_inputs import values
from torch import Tensor

from pa_tutorial.bench import gpu_grid
from pa_tutorial.bench.batches import (
    in_plain_layout,
    only,
    random_batch,
    reference,
    seen_as_plain,
    worst_error,
)
from pa_tutorial.bench.gpu_grid import BOUNDS, Point, compare, errors_at, lengths, points
from pa_tutorial.bench.process_pool import Done
from pa_tutorial.kernels.launch import paged_attention_v1
from pa_tutorial.kernels.triton_launch import why_absent
from pa_tutorial.simt.simulate import MAX_SHARED
from pa_tutorial.walk.cases import CASES
from pa_tutorial.walk.ladder import STAGES

SMALL = {"device": "cpu", "most": 40, "num_blocks": 24}


# The reference, and the batches ----------------------------------------------------------------


def test_reference_is_the_oracle() -> None:
    cases = [case for case in CASES.values() if STAGES["cuda_v1"].is_checked_on(case)]
    cases = [case for case in cases if sum(case.seq_lens) <= 50]
    assert len(cases) > 20
    for case in cases:
        expected = torch.from_numpy(case.expected()["out"])
        assert worst_error(reference(*values(case.paged("vllm"))), expected) < 1e-9, case.id


def test_error_of_nan_is_infinite() -> None:
    expected = torch.ones(2, 3, 4, dtype=torch.float64)
    assert worst_error(expected, expected) == 0
    one_wrong = expected.clone()
    one_wrong[1, 2, 3] = 3
    assert worst_error(one_wrong, expected) == 1
    one_wrong[0, 0, 0] = torch.nan
    assert worst_error(one_wrong, expected) == float("inf")


def test_slots_that_no_token_owns_are_nan() -> None:
    batch = random_batch((9, 1, 16), 2, 2, 32, 8, torch.float16, 20, "cpu")
    tables, k_cache, v_cache = (batch[n] for n in ("block_tables", "k_cache", "v_cache"))
    assert tables.shape == (3, 3)
    last = [int(tables[0, 1]), int(tables[1, 0]), int(tables[2, 1])]
    assert len({*last}) == 3
    assert k_cache[last[0], :, :, 1:].isnan().all()
    assert v_cache[last[0], :, :, 1:].isnan().all()
    assert not k_cache[last[0], :, :, 0].isnan().any()
    assert not v_cache[last[2]].isnan().any(), "a block without room"
    assert v_cache[tables[1, 1].long()].isnan().all(), "the padding"
    assert not v_cache[tables[:, 0].long()[[0, 2]]].isnan().any(), "full blocks hold numbers"


def test_batches_have_weights_that_differ() -> None:
    """In vLLM's own tests all weights are nearly equal: there, K could be ignored."""
    batch = random_batch((40,), 2, 2, 64, 8, torch.float32, 20, "cpu")
    without_k = batch | {"k_cache": torch.zeros_like(batch["k_cache"])}
    assert worst_error(reference(**without_k), reference(**batch)) > 0.3
    other = random_batch((40,), 2, 2, 64, 8, torch.float32, 20, "cpu", seed=1)
    assert not torch.equal(other["q"], batch["q"])


def test_only_some_sequences() -> None:
    batch = random_batch((9, 20, 3), 2, 1, 32, 8, torch.float32, 20, "cpu", alibi=True)
    assert torch.equal(reference(**only(batch, (0, 2))), reference(**batch)[[0, 2]])


# The grid --------------------------------------------------------------------------------------


def test_grid_is_vllms() -> None:
    assert len(points()) == len(set(points())) == 3 * 2 * 9 * 3
    assert {(p.num_heads, p.num_kv_heads) for p in points()} == {(40, 40), (64, 8)}
    assert {p.dtype for p in points()[:12]} == set(BOUNDS), "cut short, it has something of all"
    assert points() == points()


def test_lengths_go_from_short_to_the_longest() -> None:
    drawn = lengths(57_600, "a")
    assert len(drawn) == 7
    assert drawn[-1] == 57_600
    assert 1 <= min(drawn) <= max(drawn) == 57_600
    many = [n for seed in range(100) for n in lengths(57_600, f"{seed}")[:-1]]
    assert sum(n < 240 for n in many) > len(many) / 3, "half of them, in the mean"
    assert gpu_grid.longest("cpu") == MAX_SHARED // 4 - 512


@pytest.mark.parametrize(
    "point",
    [
        Point(torch.float16, 4, 4, 32, 8),
        Point(torch.bfloat16, 4, 1, 80, 16),
        Point(torch.float32, 1, 1, 128, 32),
    ],
    ids=str,
)
def test_right_kernels_are_within_the_bound(point: Point, monkeypatch) -> None:
    monkeypatch.setattr(gpu_grid, "NUM_SEQS", 3)
    errors = errors_at(point, **SMALL)
    assert set(errors) == set(point.kernels)
    expected_triton = why_absent() is None and point.head_size in (80, 128)
    assert ("triton" in errors) == expected_triton
    assert all(0 < error <= BOUNDS[point.dtype] / 4 for error in errors.values())


def test_kernels_that_are_tried_at_some_head_sizes_only(monkeypatch) -> None:
    def tried() -> dict[int, set[str]]:
        return {p.head_size: {*p.kernels} for p in points()}

    monkeypatch.setattr(gpu_grid, "why_absent", lambda: None)
    always = {"v1_vector", "v2"}
    more = {80: {"triton"}, 128: {"v1", "triton"}}
    assert tried() == {size: always | more.get(size, set()) for size in tried()}
    assert 32 in tried()
    monkeypatch.setattr(gpu_grid, "why_absent", lambda: "no wheels for it")
    assert tried() == {size: always | more.get(size, set()) - {"triton"} for size in tried()}


def test_a_batch_in_the_plain_layout_is_the_same_step() -> None:
    batch = random_batch((9, 20, 3), 4, 2, 32, 8, torch.float16, 20, "cpu", alibi=True)
    plain = in_plain_layout(batch)
    assert plain["k_cache"].shape == plain["v_cache"].shape == (20, 2, 8, 32)
    assert worst_error(reference(**plain), reference(**batch)) < 1e-12  # float64, summed otherwise
    assert plain["k_cache"].isnan().sum() == batch["k_cache"].isnan().sum() > 0


def test_memory_seen_as_plain_is_not_copied_and_has_other_numbers() -> None:
    batch = random_batch((16,), 4, 2, 32, 8, torch.float16, 20, "cpu")
    plain = seen_as_plain(batch)
    for name in ("k_cache", "v_cache"):
        assert plain[name].data_ptr() == batch[name].data_ptr()
        assert plain[name].shape == (20, 2, 8, 32)
    assert worst_error(reference(**plain), reference(**batch)) > 0.3


@pytest.mark.triton
def test_a_wrong_triton_kernel_is_beyond_the_bound(monkeypatch) -> None:
    def ignores_slopes(**arguments: object) -> Tensor:
        return gpu_grid.paged_attention_triton(**(arguments | {"alibi_slopes": None}))

    point = Point(torch.bfloat16, 2, 1, 80, 16)
    monkeypatch.setattr(gpu_grid, "NUM_SEQS", 2)
    monkeypatch.setitem(gpu_grid.KERNELS, "triton", ignores_slopes)
    errors = errors_at(point, **SMALL)
    assert errors["triton"] > BOUNDS[point.dtype] > errors["v2"]


def without_the_first_token(*inputs: object, **arguments: object) -> Tensor:
    arguments["block_tables"] = arguments["block_tables"].roll(-1, 1)
    lens = (arguments["seq_lens"] - 8).clamp(min=1)
    return paged_attention_v1(**(arguments | {"seq_lens": lens}))


def test_a_wrong_kernel_is_beyond_the_bound(monkeypatch) -> None:
    monkeypatch.setitem(gpu_grid.KERNELS, "v2", without_the_first_token)
    point = Point(torch.bfloat16, 2, 2, 32, 8)
    assert errors_at(point, **SMALL)["v2"] > BOUNDS[point.dtype]


def test_a_kernel_without_alibi_is_beyond_the_bound(monkeypatch) -> None:
    def ignores_slopes(**arguments: object) -> Tensor:
        return paged_attention_v1(**(arguments | {"alibi_slopes": None}))

    monkeypatch.setitem(gpu_grid.KERNELS, "v1_vector", ignores_slopes)
    point = Point(torch.bfloat16, 2, 2, 32, 8)
    assert errors_at(point, **SMALL)["v1_vector"] > BOUNDS[point.dtype]


def test_the_pool_is_smaller_where_its_blocks_are_large(monkeypatch) -> None:
    point = Point(torch.float32, 2, 2, 128, 32)
    monkeypatch.setattr(gpu_grid, "MOST_BYTES", 16 * 2 * 2 * 128 * 32 * 4)
    assert len(gpu_grid.batch_of(point, False, 40, "cpu", 4321)["v_cache"]) == 16


def small(point: Point) -> dict[str, float]:
    """In a process of its own: what errors_at gives on the CPU, and for one point NaN."""
    errors = errors_at(point, device="cpu", most=9, num_blocks=12)
    return errors if point.dtype == torch.float16 else errors | {"v2": float("nan")}


def test_report_of_a_grid_in_processes(capsys) -> None:
    grid = [Point(torch.float16, 2, 2, 32, 8), Point(torch.bfloat16, 2, 1, 32, 8)]
    found = compare(seconds=100, workers=1, work=small, grid=grid)
    assert found["tried"] == 2
    assert found["wrong"] == [str(grid[1])] == ["bfloat16, 2/1 heads x 32, blocks of 8"]
    assert found["different"][str(grid[1])]["v2"] == "nan"
    assert found["worst"]["float16"].keys() == {"v1_vector", "v2"}
    said = capsys.readouterr().out
    assert "1 of 2 geometries are right, 1 wrong" in said
    assert "(bound 2e-03)" in said
    assert "left out" not in said


def test_what_is_left_out_or_died_is_said(monkeypatch, capsys) -> None:
    def run_in_pool(work: Callable, grid: list[Point], workers: int, seconds: float) -> Done:
        right = dict.fromkeys(("v1_vector", "v2"), 1e-6)
        assert (work, workers, seconds) == (errors_at, gpu_grid.WORKERS, 9)
        return Done({0: right}, {1: "exit code -6"}, list(range(2, len(grid))))

    monkeypatch.setattr(gpu_grid, "run_in_pool", run_in_pool)
    monkeypatch.setattr(gpu_grid, "why_absent", lambda: "no wheels for it")
    found = compare(seconds=9)
    assert found["wrong"] == [str(points()[1])]
    assert found["left_out"] == [str(point) for point in points()[2:]]
    said = capsys.readouterr().out
    assert "left out, no time: 160 of 162 geometries" in said
    assert "exit code -6" in said
    assert "triton: not run: no wheels for it" in said
    assert errors_at.__defaults__[0] == "cuda"
