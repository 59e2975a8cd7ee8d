"""The pictures of notebook 17 show what is in the caches."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from pa_tutorial.distributed.context import deal_out
from pa_tutorial.viz.many_devices import FOUR_BLOCKS, draw_blocks, draw_heads, is_written


def texts(figure: object) -> list[str]:
    return [text.get_text() for axes in figure.axes for text in axes.texts]


def test_only_blocks_of_the_sequence_are_written() -> None:
    written = is_written(FOUR_BLOCKS.paged("plain").v_cache)
    assert sorted(set(np.nonzero(written)[0].tolist())) == [1, 2, 5, 6]
    assert written[[1, 2, 5, 6]].all()


def test_heads_are_all_drawn_and_tables_are_the_same() -> None:
    drawn = texts(draw_heads(FOUR_BLOCKS, 2))
    assert [drawn.count(f"head {head}") for head in range(2)] == [2] * 2  # whole, and one rank
    titles = [text for text in drawn if "block table" in text]
    assert len(titles) == 3
    assert all(title.endswith("[5, 2, 6, 1]") for title in titles)
    # each logical block index: once for each head on one device, once for each head on its rank
    assert drawn.count("3") == 2 + 2 + 3  # and three times the block of this number


def test_repeated_heads_are_drawn_on_each_rank_that_has_them() -> None:
    drawn = texts(draw_heads(FOUR_BLOCKS, 4))
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


@pytest.mark.parametrize(
    "draw",
    [draw_heads, draw_blocks],
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
