"""What the figures of notebook 12 show is what the kernels of v2 did, and what a schedule says."""

from itertools import pairwise

import numpy as np
import pytest
from matplotlib.figure import Figure

from pa_tutorial.kernels.geometry import divide_round_up
from pa_tutorial.viz import multiprocessors, partitions
from pa_tutorial.viz.kernel_runs import run_v2
from pa_tutorial.walk.cases import WORKED_EXAMPLE

pytestmark = pytest.mark.cuda_v2


def texts_of(figure: Figure) -> list[str]:
    return [text.get_text() for axes in figure.axes for text in axes.texts]


# Idle multiprocessors


@pytest.mark.parametrize("partition_size", [0, 512, 1000])
def test_every_token_of_every_head_is_in_one_thread_block(partition_size: int) -> None:
    work = multiprocessors.thread_blocks((4096, 700, 512), 3, partition_size)
    for sequence, seq_len in enumerate((4096, 700, 512)):
        mine = [tokens for owner, tokens in work if owner == sequence]
        assert sum(mine) == 3 * seq_len
        assert len(mine) == 3 * (divide_round_up(seq_len, partition_size) if partition_size else 1)


def test_heads_count_fastest_in_the_grid() -> None:
    work = multiprocessors.thread_blocks((16, 5), 2, partition_size=8)
    assert work == [(0, 8), (0, 8), (1, 5), (1, 5), (0, 8), (0, 8)]


def test_a_thread_block_goes_to_the_multiprocessor_that_is_free_first() -> None:
    pieces = multiprocessors.schedule([(0, 9), (0, 2), (1, 4), (1, 4)], num_multiprocessors=2)
    found = [(piece.multiprocessor, piece.start, piece.end) for piece in pieces]
    assert found == [(0, 0, 9), (1, 0, 2), (1, 2, 6), (1, 6, 10)]
    assert multiprocessors.end_of(pieces) == 10
    assert multiprocessors.busy(pieces, 2) == 19 / 20


def test_no_multiprocessor_has_two_thread_blocks_at_once() -> None:
    work = multiprocessors.thread_blocks(multiprocessors.MIXED, 32, 512)
    pieces = multiprocessors.schedule(work, 132)
    assert len(pieces) == len(work)
    for number in range(132):
        mine = sorted((p.start, p.end) for p in pieces if p.multiprocessor == number)
        assert all(end <= start for (_, end), (start, _) in pairwise(mine))


def test_the_title_counts_those_that_never_have_work() -> None:
    figure = multiprocessors.draw_idle([(4096,)], num_heads=20)
    assert figure.get_suptitle().startswith("One sequence: v1 leaves 112 of 132 multiprocessors")
    assert "ends at 4,096\n15 % of the time is work" in texts_of(figure)


# Split


def expected_partitions(head: int) -> list[list[np.ndarray]]:
    """[partition] -> qk, exp and weights of the worked example, from the oracle."""
    qk = WORKED_EXAMPLE.expected()["qk"][0, head]
    found = []
    for part in (qk[:8], qk[8:]):
        exps = np.exp(part - part.max())
        found.append([part, exps, exps / exps.sum()])
    return found


@pytest.mark.parametrize("head", range(4))
def test_the_split_shows_what_each_partition_computes_and_leaves(head: int) -> None:
    texts = texts_of(partitions.draw_split(WORKED_EXAMPLE, partition_size=8, head=head))
    ends = [i for i, text in enumerate(texts) if text in ("leaves:", "v1 (notebook 10):")]
    oracle = WORKED_EXAMPLE.expected()
    for partition, (qk, exps, weights) in enumerate(expected_partitions(head)):
        start = texts.index(f"partition {partition}") + 1
        columns = [[f"{row[i]:.2f}" for row in (qk, exps, weights)] for i in range(len(qk))]
        shown = texts[start : ends[partition]]
        assert [shown[i + 1 : i + 4] for i in range(0, len(shown), 4)] == columns
        left = texts[ends[partition] + 1 : ends[partition] + 3]
        assert left == [f"{qk.max():.3f}", f"{exps.sum():.3f}"]
    whole = [f"{oracle[name][0, head, 0]:.3f}" for name in ("qk_max", "exp_sum")]
    assert texts[ends[2] + 1 : ends[2] + 3] == whole
    shown = [float(text) for text in texts[ends[2] + 3 : ends[2] + 7]]
    np.testing.assert_allclose(shown, oracle["out"][0, head, :4], atol=0.006)


# A mixed batch


@pytest.mark.parametrize("partition_size", [8, 24, 64])
def test_thread_blocks_have_the_tokens_of_their_partition(partition_size: int) -> None:
    trace = run_v2(partitions.MIXED, partition_size).partitions.trace
    starts = range(0, max(partitions.MIXED.seq_lens), partition_size)
    expected = [
        [max(0, min(seq_len - start, partition_size)) for start in starts]
        for seq_len in partitions.MIXED.seq_lens
    ]
    assert partitions.tokens_of_thread_blocks(trace).tolist() == expected


def test_the_batch_shows_the_tokens_and_counts_the_empty_thread_blocks() -> None:
    figure = partitions.draw_mixed(partitions.MIXED, partition_size=16)
    assert figure.get_suptitle().startswith("8 of 16 thread blocks")
    texts = texts_of(figure)
    assert [int(text) for text in texts if text.isdigit()] == [11, 5, 16, 4, 16, 16, 16, 13]
    assert "sequence 3\n61 tokens" in texts
