"""Sectors, lines and bank conflicts: closed forms, and a count by sets, thread by thread."""

import math

import numpy as np
import pytest
from numba import cuda, float32
from simt_helpers import wrong_counts
from simt_kernels.example import EXAMPLES, TRAFFIC

from pa_tutorial import simt
from pa_tutorial.simt import (
    bytes_by_space,
    different_sectors,
    global_traffic,
    instructions,
    launch,
    shared_traffic,
)
from pa_tutorial.simt.trace import Trace


def traced(name: str, order: str = "together") -> Trace:
    example = EXAMPLES[name]
    size = {"shared_bytes": example.shared_bytes, "order": order}
    return launch(
        example.kernel, example.grid, example.block, *example.draw(), trace="all", **size
    ).trace


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


# The other tables ----------------------------------------------------------------------------


def test_bytes_by_space() -> None:
    table = bytes_by_space(traced("transpose_with_padding"))
    assert table.rows == (
        ("global", "read", 32, 4096),
        ("global", "write", 32, 4096),
        ("shared", "read", 32, 4096),
        ("shared", "write", 32, 4096),
    )


def test_instructions_of_every_kind_stand_in_the_table() -> None:
    @cuda.jit
    def every_kind(out, a):
        t = cuda.threadIdx.x
        mine = cuda.local.array(2, float32)
        mine[0] = a[t]
        x = cuda.shfl_xor_sync(0xFFFFFFFF, mine[0], 1)
        if cuda.any_sync(0xFFFFFFFF, t > 3):
            cuda.syncwarp()
        cuda.syncthreads()
        cuda.atomic.add(out, 0, x)

    trace = launch(
        every_kind, 1, 64, np.zeros(1, np.float32), np.ones(64, np.float32), trace=0
    ).trace
    table = instructions(trace)
    assert set(table.column("does")) == {
        "write", "read", "shuffle", "vote", "syncwarp", "barrier", "atomic",
    }  # fmt: skip
    assert table.column("instructions") == [2] * len(table.rows)
    assert bytes_by_space(trace).rows[-2:] == (
        ("local", "read", 2, 256),
        ("local", "write", 2, 256),
    )
    assert global_traffic(trace).column("does") == ["read", "atomic"]


def test_atomics_have_no_wavefronts() -> None:
    @cuda.jit
    def histogram(out, a):
        s = cuda.shared.array(32, np.int32)
        t = cuda.threadIdx.x
        s[t] = 0
        cuda.syncthreads()
        cuda.atomic.add(s, a[t], 1)
        cuda.syncthreads()
        out[t] = s[t]

    arguments = np.zeros(32, np.int32), np.zeros(32, np.int32)
    table = shared_traffic(launch(histogram, 1, 32, *arguments, trace=0).trace)
    assert table.column("does") == ["write", "read"]


def test_a_table_reads_well() -> None:
    text = str(global_traffic(traced("stride_2")))
    assert text.splitlines()[0] == "Global memory: stride_2"
    (sums,) = (line.split() for line in text.splitlines() if "in all" in line)
    assert sums == ["in", "all", "2", "12", "8", "3", "2"]
    assert "They are not bytes from DRAM" in text
    with pytest.raises(KeyError, match="there is no column 'sector'; there are: line, expression"):
        global_traffic(traced("stride_2")).column("sector")


def test_an_access_may_begin_within_a_word() -> None:
    """128 bytes from byte 2 on: the ideal counts bytes, wherever they begin."""

    @cuda.jit
    def kernel(out, a):
        out[cuda.threadIdx.x] = a[cuda.threadIdx.x]

    a = np.zeros(200, np.uint8)[2:130].view(np.float32)
    trace = launch(kernel, 1, 32, np.zeros(32, np.float32), a, trace=0, checks=()).trace
    table = global_traffic(trace.only(array="a"))
    assert (table.total("sectors"), table.total("ideal sectors")) == (5, 4)


def test_sums_are_wide() -> None:
    @cuda.jit
    def kernel(out, a):
        total = 0.0
        for i in range(200):
            total += a[i]
        out[cuda.threadIdx.x] = total

    trace = launch(kernel, 1, 40, np.zeros(40), np.zeros(200), trace=0).trace
    read, write = bytes_by_space(trace).rows
    assert read == ("global", "read", 400, 200 * 40 * 8)
    assert write == ("global", "write", 2, 40 * 8)


def test_different_sectors_are_those_of_reads_and_writes_in_global_memory() -> None:
    trace = traced("transpose_with_padding")
    assert different_sectors(trace) == 2 * 4096 // 32
    assert different_sectors(trace.only(space="shared")) == 0


def test_the_degree_is_that_of_the_worst_request() -> None:
    """64 words by 32 lanes of 8 bytes, 3 of them in one bank: 3 wavefronts for an ideal of 2."""

    @cuda.jit
    def kernel(out):
        s = cuda.shared.array(128, np.float64)
        t = cuda.threadIdx.x
        for i in range(4):
            s[t + 32 * i] = i
        cuda.syncthreads()
        for turn in range(2):
            out[t] = s[t + 33 * turn * (t // 31)]  # lane 31 then reads number 64: bank 0 and 1

    table = shared_traffic(launch(kernel, 1, 32, np.zeros(32), trace=0).trace)
    (row,) = (dict(zip(table.columns, r, strict=True)) for r in table.rows if r[2] == "read")
    assert (row["requests"], row["wavefronts"], row["ideal"], row["degree"]) == (2, 2 + 3, 4, 1.5)
    assert "1.5" in str(table)
    with pytest.raises(ValueError, match="'degree' cannot be added up; these can: requests, wave"):
        table.total("degree")


def test_two_functions_of_one_text_have_a_row_each_and_are_named() -> None:
    def element_of_every(step: int):
        @cuda.jit(device=True)
        def element(a, i):
            return a[step * i]

        return element

    near, far = element_of_every(1), element_of_every(8)

    @cuda.jit
    def kernel(out, a):
        t = cuda.threadIdx.x
        out[t] = near(a, t) + far(a, t)

    arrays = np.zeros(32, np.float32), np.zeros(256, np.float32)
    table = global_traffic(launch(kernel, 1, 32, *arrays, trace=0).trace)
    assert table.column("in") == ["kernel", "element", "element"]
    assert table.column("sectors") == [4, 4, 32]


def test_an_expression_on_several_lines_is_shown_whole() -> None:
    @cuda.jit
    def kernel(out, a):
        out[cuda.threadIdx.x] = a[
            cuda.threadIdx.x
            + 1
        ]  # fmt: skip

    table = global_traffic(launch(kernel, 1, 8, np.zeros(8), np.zeros(9), trace=0).trace)
    assert "a[ cuda.threadIdx.x + 1 ]" in table.column("expression")
    assert "in all" in str(table)
    assert "in all" not in str(global_traffic_of_one_row())


def global_traffic_of_one_row():
    return global_traffic(traced("stride_2").only(array="a"))


def test_a_table_needs_a_trace() -> None:
    with pytest.raises(TypeError, match=r"this is a NoneType; needed is launch\(\.\.\., trace=0\)"):
        global_traffic(None)


def test_nothing_to_count() -> None:
    @cuda.jit
    def idle(out):
        return

    trace = launch(idle, 1, 32, np.zeros(1, np.float32), trace=0).trace
    assert len(trace) == trace.num_instructions == different_sectors(trace) == 0
    for table in (global_traffic, shared_traffic, instructions, bytes_by_space):
        assert str(table(trace)).endswith("nothing")
