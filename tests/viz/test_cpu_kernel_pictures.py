"""What the figures of the CPU kernel are drawn from, and the measurement of its steps."""

import numpy as np

from pa_tutorial.bench import cpu_steps
from pa_tutorial.kernels.cpu_steps import STEPS
from pa_tutorial.paging.layouts import PlainLayout
from pa_tutorial.viz.cpu_figures import reading_order


def test_only_block_major_reads_neighbours() -> None:
    """Within a block each piece follows the one before; head-major never stays in a block."""
    layout = PlainLayout(6, 16, 128, 16)
    orders = [reading_order([4, 1, 5, 2], layout, block_major) for block_major in (False, True)]
    assert sorted(orders[0]) == sorted(orders[1])
    for order, neighbours in zip(orders, (0, 4 * 15), strict=True):
        places = [16 * block + piece for block, piece in order]
        assert np.count_nonzero(np.diff(places) == 1) == neighbours


def test_measure_has_every_step_and_the_bound() -> None:
    (row,) = cpu_steps.measure(2, cpu_steps.QUICK)
    assert list(row["times"]) == list(STEPS)
    assert row["read_ms"] > 0
    for time in row["times"].values():
        assert 0 < time["lowest_ms"] <= time["median_ms"] <= time["highest_ms"]


def test_mixed_batch_has_about_as_many_tokens_as_s1() -> None:
    """So that their times can be compared."""
    assert abs(sum(cpu_steps.MIXED_LENS) / sum(cpu_steps.S1.seq_lens) - 1) < 0.03
