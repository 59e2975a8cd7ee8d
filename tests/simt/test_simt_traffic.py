"""Sectors, lines and bank conflicts: closed forms, a count by hand, and the tables of them."""

import math

import pytest
from numba import cuda

import simt
from simt import Trace, launch, traffic
from tests.simt.helpers import kernel, traced, wrong_counts, zeros
from tests.simt.kernels.example import TRAFFIC


@pytest.mark.parametrize("order", ["together", "reverse"])
@pytest.mark.parametrize("name", TRAFFIC)
def test_every_line_costs_what_was_worked_out_by_hand(name: str, order: str) -> None:
    assert not wrong_counts(simt, name, traced(name, order))


def trace_of(body: str, num_threads: int, *args: object) -> Trace:
    return launch(kernel("out, a", body), 1, num_threads, *args, trace=0, checks=()).trace


def test_conflicts_of_a_stride_are_its_common_divisor_with_the_banks() -> None:
    for stride in range(1, 64):
        body = f"s = cuda.shared.array(2048, np.float32)\ns[{stride} * t] = t"
        table = traffic.shared_traffic(trace_of(body, 32, zeros(1), zeros(1)))
        assert table.column("wavefronts") == table.column("degree") == [math.gcd(stride, 32)]
        assert table.column("ideal") == [1]
        assert "in parts" not in str(table), "for words there is no second rule"


def test_bytes_and_different_sectors_of_each_space() -> None:
    trace = traced("transpose_with_padding")
    spaces = [(space, kind) for space in ("global", "shared") for kind in ("read", "write")]
    assert traffic.bytes_by_space(trace).rows == tuple((*one, 32, 4096) for one in spaces)
    assert traffic.different_sectors(trace) == 2 * 4096 // 32
    assert traffic.different_sectors(trace.only(space="shared")) == 0


def test_instructions_of_every_kind_stand_in_the_table() -> None:
    every_kind = """
        mine = cuda.local.array(2, float32)
        mine[0] = a[t]
        x = cuda.shfl_xor_sync(0xFFFFFFFF, mine[0], 1)
        if cuda.any_sync(0xFFFFFFFF, t > 3):
            cuda.syncwarp()
        cuda.syncthreads()
        cuda.atomic.add(out, 0, x)
        s = cuda.shared.array(1, float32)
        cuda.atomic.add(s, 0, x)
    """
    trace = trace_of(every_kind, 64, zeros(1), zeros(64))
    table = traffic.instructions(trace)
    kinds = {"write", "read", "shuffle", "vote", "syncwarp", "barrier", "atomic"}
    assert set(table.column("does")) == kinds
    assert table.column("instructions") == [2] * len(table.rows)
    assert traffic.shared_traffic(trace).rows == (), "atomics have no wavefronts"
    local = traffic.bytes_by_space(trace).rows[-2:]
    assert local == (("local", "read", 2, 256), ("local", "write", 2, 256))
    assert traffic.global_traffic(trace).column("does") == ["read", "atomic"]


def test_the_degree_is_that_of_the_worst_transaction() -> None:
    """64 words by 32 lanes of 8 bytes, 3 of them in one bank: 3 wavefronts for an ideal of 2."""
    body = """
        s = cuda.shared.array(128, np.float64)
        for turn in range(2):
            s[t + 33 * turn * (t // 31)] = t  # lane 31 then writes number 64: bank 0 and 1
    """
    table = traffic.shared_traffic(trace_of(body, 32, zeros(1), zeros(1)))
    (row,) = (dict(zip(table.columns, r, strict=True)) for r in table.rows)
    expected = {"transactions": 2, "wavefronts": 2 + 3, "ideal": 4, "degree": 1.5}
    assert expected.items() <= row.items()
    assert "1.5" in str(table)
    with pytest.raises(ValueError, match=r"'degree' .*: transactions, wavefronts"):
        table.total("degree")


def test_two_functions_of_one_text_have_a_row_each_and_are_named() -> None:
    def element_of_every(step: int):
        @cuda.jit(device=True)
        def element(a, i):
            return a[step * i]

        return element

    functions = {"near": element_of_every(1), "far": element_of_every(8)}
    both = kernel("out, a", "out[t] = near(a, t) + far(a, t)", **functions)
    table = traffic.global_traffic(launch(both, 1, 32, zeros(32), zeros(256), trace=0).trace)
    assert table.column("in") == ["kernel", "element", "element"]
    assert table.column("sectors") == [4, 4, 32]


def test_the_tables_of_a_trace_without_accesses_are_empty() -> None:
    trace = trace_of("return", 32, zeros(1), zeros(1))
    assert len(trace) == trace.num_instructions == traffic.different_sectors(trace) == 0
    for table in (
        traffic.global_traffic,
        traffic.shared_traffic,
        traffic.instructions,
        traffic.bytes_by_space,
    ):
        assert str(table(trace)).endswith("nothing")
