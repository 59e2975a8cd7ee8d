"""What the figures of notebook 08 are drawn from."""

from dataclasses import replace

import pytest
from matplotlib.figure import Figure

from pa_tutorial.paging.layouts import VllmLayout
from pa_tutorial.viz import first_kernel as figures
from pa_tutorial.walk.cases import WORKED_EXAMPLE


def texts(figure: Figure) -> list[str]:
    return [text.get_text() for axes in figure.axes for text in axes.texts]


@pytest.mark.parametrize(("head", "kv_head"), [(0, 0), (1, 0), (2, 1), (3, 1)])
def test_a_thread_reads_its_token_element_by_element(head: int, kv_head: int) -> None:
    keys = figures.keys_read(figures.trace_of(WORKED_EXAMPLE), head)
    layout = VllmLayout(7, 2, head_size=32, block_size=8, dtype=WORKED_EXAMPLE.dtype)
    assert sorted(keys) == list(range(11))
    for token, places in keys.items():
        block, offset = (5, 2)[token // 8], token % 8
        assert places == [layout.k_place(block, kv_head, offset, d) for d in range(32)]


def test_the_grid_names_the_blocks_of_each_sequence() -> None:
    shown = texts(figures.draw_grid_of_batch())
    for sequence, table in enumerate(figures.BATCH.tables):
        line = f"block{'s' * (len(table) > 1)} {', '.join(map(str, table))}"
        here = [text for text in shown if text.split("\n")[0] == line]
        assert len(here) == figures.BATCH.num_heads
        assert sum("KV head 1" in text for text in here) == 2
        assert f"{figures.BATCH.seq_lens[sequence]} of 128 threads" in here[0]


def test_heads_that_share_no_keys_are_not_said_to() -> None:
    problem = replace(figures.BATCH, num_kv_heads=4)
    title = figures.draw_grid(figures.trace_of(problem), problem.seq_lens).get_suptitle()
    assert title.endswith("one for each head of each sequence")


def test_the_sums_of_the_address_picture_are_the_layouts_addresses() -> None:
    shown = texts(figures.draw_worked_addresses())
    layout = VllmLayout(7, 2, head_size=32, block_size=8, dtype=WORKED_EXAMPLE.dtype)
    for place in ((5, 0, 0, 0), (2, 0, 1, 0), (2, 0, 1, 31)):
        assert str(layout.k_element(*place) * 2) in shown


def test_the_address_picture_follows_the_block_table() -> None:
    problem = replace(WORKED_EXAMPLE, tables=((3, 6),))
    trace = figures.trace_of(problem)
    figure = figures.draw_addresses(trace, problem.paged("vllm").block_tables[0].tolist(), (10,))
    assert "block 6, KV head 0" in texts(figure)
    assert figure.get_suptitle() == (
        "Thread 10 takes token 10: logical block 1, offset 2; the block table says block 6"
    )
