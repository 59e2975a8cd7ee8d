"""The tables of a trace: bytes, instructions, what is in a row, and how they read."""

import numpy as np
import pytest
from numba import cuda, float32
from simt_helpers import traced

from pa_tutorial.simt import (
    bytes_by_space,
    different_sectors,
    global_traffic,
    instructions,
    launch,
    shared_traffic,
)


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
