"""Sectors, lines and bank conflicts: closed forms, and a count by sets, thread by thread."""

import math

import numpy as np
import pytest
from numba import cuda, float32
from simt_helpers import traced, wrong_counts
from simt_kernels.example import TRAFFIC

from pa_tutorial import simt
from pa_tutorial.simt import (
    different_sectors,
    global_traffic,
    launch,
    shared_traffic,
)


@pytest.mark.parametrize("order", ["together", "reverse"])
@pytest.mark.parametrize("name", TRAFFIC)
def test_every_line_costs_what_was_worked_out_by_hand(name: str, order: str) -> None:
    assert not wrong_counts(simt, name, traced(name, order))


# Strides ------------------------------------------------------------------------------------


@cuda.jit
def strided(out, a, first, stride):
    out[cuda.threadIdx.x] = a[first + stride * cuda.threadIdx.x]


def reading(num_lanes: int, first: int, stride: int) -> dict[str, int]:
    a = np.zeros(first + stride * num_lanes + 1, np.float32)
    report = launch(
        strided, 1, num_lanes, np.zeros(num_lanes, np.float32), a, first, stride, trace=0
    )
    table = global_traffic(report.trace.only(array="a"))
    return dict(zip(table.columns, table.rows[0], strict=True))


@pytest.mark.parametrize("num_lanes", [1, 5, 31, 32])
@pytest.mark.parametrize("first", [0, 1, 7, 8, 33])
@pytest.mark.parametrize("stride", [*range(10), 31, 32, 33, 64])
def test_sectors_and_lines_of_a_stride(num_lanes: int, first: int, stride: int) -> None:
    """Up to a stride of one unit, all units between the ends; then one for each lane."""
    found = reading(num_lanes, first, stride)
    last = first + stride * (num_lanes - 1)
    for column, floats in (("sectors", 8), ("lines", 32)):
        between = last // floats - first // floats + 1
        assert found[column] == (between if stride <= floats else num_lanes)
    different = num_lanes if stride else 1
    assert found["ideal sectors"] == math.ceil(4 * different / 32)
    assert found["ideal lines"] == math.ceil(4 * different / 128)
    assert (found["requests"], found["lanes"]) == (1, num_lanes)


@cuda.jit
def strided_in_shared_memory(out, stride):
    s = cuda.shared.array(2048, float32)
    t = cuda.threadIdx.x
    s[stride * t] = t
    out[t] = s[stride * t]


@pytest.mark.parametrize("stride", range(1, 64))
def test_conflicts_of_a_stride_are_its_common_divisor_with_the_banks(stride: int) -> None:
    trace = launch(strided_in_shared_memory, 1, 32, np.zeros(32, np.float32), stride, trace=0).trace
    table = shared_traffic(trace)
    assert table.column("wavefronts") == table.column("degree") == [math.gcd(stride, 32)] * 2
    assert table.column("ideal") == [1, 1]
    assert "in parts" not in str(table), "for words there is no second rule"


# Any access at all, counted by sets -----------------------------------------------------------


@cuda.jit
def anywhere(out, a, where, b, where_b):
    s = cuda.shared.array(512, np.float16)
    i = cuda.grid(1)
    t = cuda.threadIdx.x
    for j in range(8):
        s[t + 64 * j] = 1
    cuda.syncthreads()
    total = float32(0)
    for j in range(where.shape[1]):
        if where[i, j] >= 0:
            total += a[where[i, j]] + b[where_b[i, j]] + s[where_b[i, j]]
    out[i] = total


def by_sets(wanted: np.ndarray, size: int, first: int) -> dict[str, int]:
    """wanted [warps, lanes, turns]: item of each lane, or -1; `first` byte address of item 0."""
    counts = dict.fromkeys(
        ("requests", "sectors", "ideal sectors", "lines", "ideal lines", "wavefronts"), 0
    )
    for warp in wanted:
        for turn in warp.T:
            items = {int(i) for i in turn if i >= 0}
            if not items:
                continue
            touched = {first + i * size + b for i in items for b in range(size)}
            words: dict[int, set[int]] = {}
            for byte in touched:
                words.setdefault(byte // 4 % 32, set()).add(byte // 4)
            counts["requests"] += 1
            for column, unit in (("sectors", 32), ("lines", 128)):
                counts[column] += len({byte // unit for byte in touched})
                counts[f"ideal {column}"] += -(-len(touched) // unit)
            counts["wavefronts"] += max(map(len, words.values()))
    return counts


@pytest.mark.parametrize("seed", range(20))
def test_counts_are_those_of_sets_for_accesses_anywhere(seed: int) -> None:
    rng = np.random.default_rng(seed)
    reach = int(rng.choice([4, 40, 400]))
    num_threads, turns, grid = int(rng.choice([7, 32, 64])), 5, 2
    where = rng.integers(-reach // 3, reach, (grid * num_threads, turns))
    where_b = rng.integers(0, reach, where.shape)
    store = rng.standard_normal(1000)
    a, b = store[3 : 3 + reach], np.ones(900, np.float16)[1:]
    out = np.zeros(grid * num_threads, np.float32)
    arguments = (out, a, where, b, where_b)
    trace = launch(anywhere, grid, num_threads, *arguments, trace="all", checks=()).trace

    def by_warp(items: np.ndarray) -> np.ndarray:
        """[warps, 32, turns], -1 for lanes that read nothing"""
        lanes = np.full((grid, -(-num_threads // 32) * 32, turns), -1)
        asked = np.where(where >= 0, items, -1)
        lanes[:, :num_threads] = asked.reshape(grid, num_threads, turns)
        return lanes.reshape(-1, 32, turns)

    first = {array.name: array.address for array in trace.arrays}
    for name, items, size in (("a", where, 8), ("b", where_b, 2)):
        table = global_traffic(trace.only(array=name))
        expected = by_sets(by_warp(items), size, first[name])
        assert {c: table.total(c) for c in expected if c in table.columns} == {
            c: n for c, n in expected.items() if c in table.columns
        }
    table = shared_traffic(trace.only(array="s", kind="read"))
    assert table.total("wavefronts") == by_sets(by_warp(where_b), 2, 0)["wavefronts"]


def test_sectors_of_requests_are_not_sectors_that_are_needed() -> None:
    """The two halves of a strided walk: each sector is asked for twice, and needed once."""
    out, a = np.zeros(32, np.float32), np.zeros(64, np.float32)

    @cuda.jit
    def both_halves(out, a):
        t = cuda.threadIdx.x
        out[t] = a[2 * t] + a[2 * t + 1]

    trace = launch(both_halves, 1, 32, out, a, trace=0).trace.only(array="a")
    assert global_traffic(trace).total("sectors") == 16
    assert different_sectors(trace) == 8
