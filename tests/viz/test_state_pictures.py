"""Pictures of pools, caches, batches and measurements show what is in them."""

import re

import numpy as np
import pytest
import torch

from pa_tutorial.paging.block_table import BlockTable
from pa_tutorial.paging.layouts import PlainLayout, VllmLayout
from pa_tutorial.paging.prefix_cache import PrefixCachingAllocator
from pa_tutorial.viz import cpu_measured, layouts
from pa_tutorial.viz.blocks import draw_translation, snapshot
from pa_tutorial.viz.cpu_figures import reading_order
from pa_tutorial.viz.engine_figures import WAITS, draw_batch, draw_timeline
from pa_tutorial.viz.tiles import draw_tile, place_of
from tests.viz.pictures import require_readable, texts_of


def test_a_frame_is_the_state_at_its_moment() -> None:
    pool = PrefixCachingAllocator(7)
    tables = {"a": BlockTable(pool, 4), "elsewhere": BlockTable(PrefixCachingAllocator(7), 4)}
    tables["a"].append(range(14))
    tables["b"] = tables["a"].fork()
    tables["a"].slide(6)
    tables["elsewhere"].append([1])
    before = snapshot("", pool, tables)
    tables["a"].free()
    after = snapshot("", pool, {"b": tables["b"]})
    tables["b"].free()

    assert before.tables == {"a": (0, 0, 3, 4), "b": (1, 2, 3, 4)}
    assert before.ref_counts[:5] == (0, 1, 1, 2, 2)
    assert before.owners == {1: ("b",), 2: ("b",), 3: ("a", "b"), 4: ("a", "b")}
    assert [before.tokens[n] for n in (2, 3, 4)] == [(4, 5, 6, 7), (8, 9, 10, 11), (12, 13)]
    assert after.ref_counts[1:5] == (1, 1, 1, 1)
    cached = snapshot("", pool, {})
    assert (cached.tokens[3], 4 in cached.tokens) == ((8, 9, 10, 11), False)
    assert not any(cached.ref_counts)


def test_a_translation_says_the_slot() -> None:
    figure = draw_translation([*"abcdefg"], [3, 1], 4, num_blocks=5, position=6)
    assert figure.get_suptitle().endswith("is block 1 of the pool; slot 1 × 4 + 2 = 6")
    require_readable(figure)


def test_slot_write_shows_every_token_at_its_slot_and_nothing_elsewhere() -> None:
    layout = VllmLayout(num_blocks=7, num_kv_heads=1, head_size=8, block_size=4)
    written = layouts.write_chunk([5, 2], 2, 6, layout)
    assert written.slots == (22, 23, 8, 9, -1)
    places = ("K", layout.k_place, written.k_cache), ("V", layout.v_place, written.v_cache)
    for side, place, cache in places:
        expected = {
            place(slot // 4, 0, slot % 4, dim): (side, token, dim)
            for token, slot in enumerate((20, 21, 22, 23, 8, 9))
            for dim in range(8)
        }
        at = [tuple(index) for index in (~cache.isnan()).nonzero().tolist()]
        assert {index: layouts.found(cache[index].item()) for index in at} == expected
    shown = texts_of(layouts.draw_slot_write(written, followed=4))
    for token in range(6):
        times = 4 if token >= 2 else 2  # once more in the rows of new tokens, as K and as V
        assert [shown.count(f"{token}.{dim}") for dim in range(8)] == [times] * 8


def test_bytes_that_touch_are_one_piece_and_a_sector_counts_once() -> None:
    token = [(3, 1, 2, dim) for dim in range(16)]
    for layout, num_k, num_v in ((VllmLayout, 4, 16), (PlainLayout, 1, 1)):
        one = layout(5, 2, 16, 4)
        runs = [layouts.byte_runs(element, 4, token) for element in (one.k_element, one.v_element)]
        assert [len(pieces) for pieces in runs] == [num_k, num_v]
        assert [sum(end - first for first, end in pieces) for pieces in runs] == [16 * 4] * 2
    for runs, count in (([(0, 4), (8, 12), (28, 32)], 1), ([(28, 36)], 2), ([(0, 128)], 4)):
        assert layouts.sectors(runs) == count


def test_a_token_of_a_tile_is_named_by_what_the_kernel_found() -> None:
    k_cache = torch.zeros(6, 2, 8, 24)
    offset = torch.arange(32) + torch.tensor([5 * 384 + 3 * 24, 2 * 384, 0])[:, None]
    is_kv = (torch.arange(32) < 24) & torch.tensor([True, True, False])[:, None]
    places = [place_of(offset, is_kv, k_cache, token) for token in range(3)]
    assert places == ["block 5, offset 3", "block 2, offset 0", "no token"]
    title = draw_tile(offset, is_kv, k_cache).get_suptitle()
    assert title == "Of a tile of 3 × 32, 50% is loaded: 2 tokens with heads of 24"


def test_timeline_tells_who_lost_its_blocks_from_who_still_waits() -> None:
    history = [{"a": 8, "b": WAITS}, {"a": 1, "b": 7}, {"a": 1, "b": WAITS}, {"b": WAITS}, {"b": 3}]
    figure = draw_timeline(history, "title")
    assert sorted(texts_of(figure)) == sorted([*"817×13", *"ab", "step", *"01234"])
    assert sum(bool(patch.get_hatch()) for patch in figure.axes[0].patches) == 2


def test_batch_is_drawn_with_all_its_numbers() -> None:
    batch = {
        "input_ids": torch.tensor([65, 66, 67]),
        "positions": torch.tensor([30, 11, 12]),
        "slot_mapping": torch.tensor([47, 90, 91]),
        "query_lens": torch.tensor([1, 2]),
        "block_tables": torch.tensor([[14, 0], [23, 22]]),
        "seq_lens": torch.tensor([31, 13]),
    }
    drawn = {*texts_of(draw_batch(batch, ["a", "b"], "title"))}
    ids = {chr(token) for token in batch.pop("input_ids")}
    assert ids | {str(int(n)) for tensor in batch.values() for n in tensor.flatten()} <= drawn


def test_only_block_major_reads_neighbours() -> None:
    layout = PlainLayout(6, 16, 128, 16)
    orders = [reading_order([4, 1, 5, 2], layout, block_major) for block_major in (False, True)]
    assert sorted(orders[0]) == sorted(orders[1])
    for order, neighbours in zip(orders, (0, 4 * 15), strict=True):
        places = [16 * block + piece for block, piece in order]
        assert np.count_nonzero(np.diff(places) == 1) == neighbours


def row(seq_len: int, num_heads: int, num_kv_heads: int, dtype: str = "float32") -> dict:
    """Reading takes 20 GB/s."""
    slowness = {"read": 0.05, "cpu": 0.1, "sdpa": 0.3, "sdpa_rows": 0.2, "gather_heads_x": 0.4}
    kv_bytes = 2 * seq_len * num_kv_heads * 64 * 4
    shape = {"name": "context", "seq_len": seq_len, "head_size": 64, "dtype": dtype}
    shape |= {"num_heads": num_heads, "num_kv_heads": num_kv_heads}
    times = {key: {"median_ms": slow * kv_bytes / 1e6} for key, slow in slowness.items()}
    return {"shape": shape, "kv_bytes": kv_bytes, "times": times}


def test_bandwidth_shows_the_speed_of_each_and_labels_what_was_measured() -> None:
    rows = [row(seq_len, *of) for of in ((16, 16), (32, 8)) for seq_len in (8192, 128, 1024)]
    rows.append(row(4096, 16, 16, "bfloat16"))  # of another kind
    figure = cpu_measured.draw_bandwidth({"decode": {"rows": rows}})
    assert "reaches 50% of the speed of reading, the best gather 12%" in figure.get_suptitle()
    for panel in figure.axes:
        assert [list(line.get_xdata()) for line in panel.lines] == [[128, 1024, 8192]] * 4
        speeds = [line.get_ydata()[0] for line in panel.lines]
        assert speeds == pytest.approx([20, 10, 5, 2.5])
    assert {label for label, *_ in cpu_measured.LINES.values()} == {*texts_of(figure)}
    with pytest.raises(ValueError, match="some with 32 query and 1 KV heads"):
        cpu_measured.contexts(rows, 32, 1)


def test_noise_shows_every_time_and_both_ways_to_compare() -> None:
    figure = cpu_measured.draw_noise([0, 1, 2], [0.4, 0.5, 9.0], [0.8, 1.3], [0.97, 1.02])
    series, compared = figure.axes
    assert list(series.lines[0].get_ydata()) == [0.4, 0.5, 9.0]
    assert re.findall(r"\d\.\d\d", figure.get_suptitle()) == ["0.80", "1.30", "0.97", "1.02"]
    assert [list(line.get_ydata()) for line in compared.lines[:2]] == [[0.8, 1.3], [0.97, 1.02]]
