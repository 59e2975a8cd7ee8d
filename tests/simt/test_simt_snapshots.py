"""Looking inside: variables copied at a line, at a barrier, at the end."""

import numpy as np
import pytest
from numba import cuda

from simt import launch
from tests.simt.helpers import N, block_sum, floats, kernel


@pytest.mark.parametrize("order", ["together", "reverse"])
def test_variables_can_be_read_at_a_line_at_a_barrier_and_at_the_end(order: str) -> None:
    a = floats(2, N)
    line = block_sum.py_func.__code__.co_firstlineno + 5
    watch, names = [line, "cuda.syncthreads()", "total += s[i]", "end"], ["s", "i", "total"]
    report = launch(block_sum, 2, N, floats(2), a, watch=watch, names=names, order=order)
    assert {snapshot.code for snapshot in report.at(line)} == {"s[t] = a[cuda.blockIdx.x, t]"}
    at_barrier = report.at("cuda.syncthreads()", block=1)
    assert len(at_barrier) == (1 if order == "together" else 2)
    np.testing.assert_array_equal(at_barrier[-1]["s"].compressed(), a[1])
    rows = report.rows("total += s[i]", "i", "total")
    assert rows.dtype.names == ("block", "thread", "i", "total")
    assert len(rows) == 2 * N * N
    third = rows[(rows.block == 1) & (rows.thread == 5) & (rows.i == 3)]
    np.testing.assert_allclose(third.total, a[1, :3].sum(), rtol=1e-6)
    assert {snapshot.block for snapshot in report.at("end")} == {(0, 0, 0), (1, 0, 0)}
    last = report.at("end", block=1)[-1]
    np.testing.assert_array_equal(last["s"], a[1])
    np.testing.assert_allclose(last["total"], np.full(len(last.threads), a[1].sum()), rtol=1e-4)
    assert "t" not in last.values


def test_what_nobody_has_written_is_masked() -> None:
    writes_little = kernel(
        "out",
        """
        row = cuda.local.array((2, 3), np.float64)
        s = cuda.shared.array(4, float32)
        row[1, 2] = t
        s[2] = 7
        if t > 0:
            late = t
            out[late] = 1
        """,
    )
    report = launch(writes_little, 1, 3, floats(4), watch="end", checks=("init",))
    (snapshot,) = report.at("end")
    assert snapshot["row"].shape == (3, 2, 3)
    assert snapshot["row"][2, 1, 2] == 2
    assert snapshot["row"].mask.sum() == 3 * 5
    assert snapshot["s"].tolist() == [None, None, 7.0, None]
    assert snapshot["late"].tolist() == [None, 1, 2]
    with pytest.raises(KeyError, match="nothing has no value here"):
        snapshot["nothing"]


@cuda.jit(device=True)
def half_marked(x):
    # mark: half

    # what is done with it
    half = x // 2
    return half


@cuda.jit
def marked(out):
    t = cuda.threadIdx.x
    total = 0
    for i in range(2):
        total += half_marked(t) + i
        # mark: turn
    # mark: total
    out[t] = total


def test_a_mark_means_the_next_statement_also_in_a_device_function() -> None:
    watch = ("mark: half", "mark: turn", "mark: total")
    report = launch(marked, 1, 4, floats(4), watch=watch)
    seen = [snapshot.code for snapshot in report.snapshots]
    assert seen == ["half = x // 2", "half = x // 2", "out[t] = total"]
    for mark in ("mark: turn", "mark: total"):  # below both of them
        np.testing.assert_array_equal(report.rows(mark, "total").total, [1, 1, 3, 3])
    assert len(report.at("mark: half")) == 2
    with pytest.raises(ValueError, match=r"'mark: hal'.* mark: half, mark: total, mark: turn"):
        launch(marked, 1, 4, floats(4), watch="mark: hal")


@pytest.mark.parametrize(("name", "words"), [("thread", "columns already"), ("s", "is an array")])
def test_rows_holds_only_scalars_under_their_own_names(name: str, words: str) -> None:
    body = "s = cuda.local.array(2, float32)\nthread = t\ns[0] = s[1] = thread\nout[t] = s[0]"
    report = launch(kernel("out", body), 1, 4, floats(4), watch="end")
    with pytest.raises(ValueError, match=words):
        report.rows("end", name)


@pytest.mark.parametrize(
    ("line", "rows"),
    [
        ("row = 0\nif t == 2:\n    row = 2.5", [0, 0, 2.5]),
        ("row = s\nif t == 0:\n    return\nrow = own", None),  # a name for two arrays
        ("row = s[5]", None),
        ("row = s[t + 1]", [2, None]),  # of thread 0
        ("row = own[t + 1]", [[0, None], [None, None], [None, None]]),
        (
            "n = 1 if t < 2 else 99\nif t < 2:\n    row = own[n]",
            [[0, None], [1, None], [None, None]],
        ),
    ],
)
def test_lanes_without_a_part_of_an_array_are_left_out(line: str, rows: list | None) -> None:
    arrays = "s, own = cuda.shared.array((2, 2), float32), cuda.local.array((2, 2), float32)"
    body = f"{arrays}\ns[1, 0] = 2\nown[1, 0] = t\n{line}\nout[t] = t"
    checks = ("memory", "init")
    report = launch(kernel("out", body), 1, 3, floats(4), watch="end", checks=checks, collect=True)
    row = report.at()[0].values.get("row")
    assert (row if row is None else row.tolist()) == rows
