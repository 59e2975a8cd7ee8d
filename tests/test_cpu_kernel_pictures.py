"""What the figures of the CPU kernel are drawn from, and the measurement of its steps."""

from itertools import pairwise

import numpy as np
import pytest

from pa_tutorial.bench import cpu_steps
from pa_tutorial.kernels.cpu_steps import STEPS
from pa_tutorial.paging.layouts import PlainLayout
from pa_tutorial.viz.cpu_figures import BLOCK_SIZE, by_sequence, dealt_out_evenly, reading_order

SEQ_LENS = (64, 90, 40, 480, 7)
BLOCKS = [4, 6, 3, 30, 1]


@pytest.mark.parametrize("num_shares", [1, 2, 4, 5])
def test_both_ways_deal_every_block_out_once(num_shares: int) -> None:
    for deal in (by_sequence, dealt_out_evenly):
        assert deal(SEQ_LENS, num_shares).sum(axis=0).tolist() == BLOCKS


@pytest.mark.parametrize("num_shares", [1, 2, 4, 5])
def test_shares_of_the_kernel_are_equal_and_in_order(num_shares: int) -> None:
    shares = dealt_out_evenly(SEQ_LENS, num_shares)
    sums = shares.sum(axis=1)
    assert sums.max() - sums.min() <= 1
    for earlier, later in pairwise(shares):
        assert np.flatnonzero(earlier).max() <= np.flatnonzero(later).min()


def test_a_share_that_ends_with_a_sequence_is_told_from_the_next() -> None:
    lens = (2 * BLOCK_SIZE, 2 * BLOCK_SIZE)
    assert dealt_out_evenly(lens, 2).tolist() == [[2, 0], [0, 2]]


def test_by_sequence_cuts_the_sequences_into_runs() -> None:
    assert by_sequence(SEQ_LENS, 2).tolist() == [[4, 6, 3, 0, 0], [0, 0, 0, 30, 1]]


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
