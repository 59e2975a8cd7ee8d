"""The pictures of notebook 17 show what is in the caches, and numbers that v2 and ranks leave."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch

from pa_tutorial.distributed.context import deal_out
from pa_tutorial.viz import distributed_figures
from pa_tutorial.viz.distributed_figures import (
    FOUR_BLOCKS,
    draw_blocks,
    draw_heads,
    draw_merge,
    is_written,
    merged,
    parts_of_ranks,
    parts_of_thread_blocks,
)
from pa_tutorial.walk.cases import WORKED_EXAMPLE
from pa_tutorial.walk.problem import DecodeProblem

SIX_BLOCKS = replace(WORKED_EXAMPLE, seq_lens=(43,), tables=((7, 3, 5, 1, 4, 2),))


def texts(figure: object) -> list[str]:
    return [text.get_text() for axes in figure.axes for text in axes.texts]


def test_only_blocks_of_the_sequence_are_written() -> None:
    written = is_written(FOUR_BLOCKS.paged("plain").v_cache)
    assert sorted(set(np.nonzero(written)[0].tolist())) == [1, 2, 5, 6]
    assert written[[1, 2, 5, 6]].all()


def test_heads_are_all_drawn_and_tables_are_the_same() -> None:
    drawn = texts(draw_heads(FOUR_BLOCKS, 2))
    assert [drawn.count(f"head {head}") for head in range(4)] == [2] * 4  # whole, and one rank
    titles = [text for text in drawn if "block table" in text]
    assert len(titles) == 3
    assert all(title.endswith("[5, 2, 6, 1]") for title in titles)
    # each logical block index: once for each head on one device, once for each head on its rank
    assert drawn.count("3") == 4 + 4 + 3  # and three times the block of this number


def test_repeated_heads_are_drawn_on_each_rank_that_has_them() -> None:
    shared = replace(FOUR_BLOCKS, num_kv_heads=2)
    drawn = texts(draw_heads(shared, 4))
    assert [drawn.count(f"head {head}") for head in range(2)] == [1 + 2] * 2


def test_blocks_are_dealt_out_and_numbered_by_each_rank() -> None:
    drawn = texts(draw_blocks(FOUR_BLOCKS, 2))
    assert "rank 0   block table [1, 2]" in drawn
    assert "rank 1   block table [1, 2]" in drawn
    assert "one device   block table [5, 2, 6, 1]" in drawn


def test_a_rank_without_a_block_has_an_empty_table() -> None:
    two_blocks = replace(FOUR_BLOCKS, seq_lens=(11,), tables=((5, 2),))
    drawn = texts(draw_blocks(two_blocks, 3))
    assert "rank 2   block table []" in drawn


@pytest.mark.parametrize("problem", [WORKED_EXAMPLE, SIX_BLOCKS], ids=["worked", "six_blocks"])
def test_ranks_leave_what_thread_blocks_leave(problem: DecodeProblem) -> None:
    """What the title of the picture says: with one block each, the same three."""
    for head in range(problem.num_heads):
        of_blocks = parts_of_thread_blocks(problem, problem.block_size, head)
        of_ranks = parts_of_ranks(problem, len(of_blocks), head)
        assert len(of_ranks) == -(-problem.seq_lens[0] // problem.block_size)
        for ours, theirs in zip(of_ranks, of_blocks, strict=True):
            assert ours[:2] == pytest.approx(theirs[:2], rel=1e-5)
            np.testing.assert_allclose(ours[2], theirs[2], atol=2e-3)  # tmp_out is float16


def test_the_merged_output_is_that_of_the_oracle() -> None:
    head = 1
    _, rescaled, out = merged(parts_of_ranks(SIX_BLOCKS, 3, head))
    assert len(rescaled) == 3
    expected = torch.as_tensor(SIX_BLOCKS.expected()["out"])[0, head]
    np.testing.assert_allclose(out, expected, atol=1e-3)


def test_both_columns_of_the_merge_say_the_same() -> None:
    left, right = draw_merge(WORKED_EXAMPLE).axes
    numbers = [
        [t.get_text() for t in axes.texts if t.get_text().lstrip("-")[:1].isdigit()]
        for axes in (left, right)
    ]
    assert numbers[0] == numbers[1]
    assert len(numbers[0]) == 2 * (3 + 4) + 1 + 4  # m, l, l below M, four outputs; M, the output


@pytest.mark.parametrize(
    "draw",
    [
        distributed_figures.draw_four_blocks_by_heads,
        distributed_figures.draw_four_blocks_dealt_out,
        distributed_figures.draw_worked_merge,
    ],
)
def test_labels_lie_inside_the_picture(draw: Callable) -> None:
    figure = draw()
    figure.draw_without_rendering()
    box = figure.bbox
    for axes in figure.axes:
        for text in axes.texts:
            extent = text.get_window_extent()
            assert box.x0 - 1 <= extent.x0, text.get_text()
            assert extent.x1 <= box.x1 + 1, text.get_text()


def test_deal_out_is_what_is_drawn() -> None:
    inputs = FOUR_BLOCKS.paged("plain")
    whole = inputs.k_cache, inputs.v_cache, inputs.block_tables, inputs.seq_lens
    for rank in range(2):
        written = is_written(deal_out(*whole, rank, 2).v_cache)
        assert not written[0].any(), "the null block is nobody's"
        assert written[1:].all()
