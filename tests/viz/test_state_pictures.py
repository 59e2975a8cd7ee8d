"""Pictures of pools, caches and timelines show what is in them."""

import torch

from pa_tutorial.paging.block_table import BlockTable
from pa_tutorial.paging.layouts import PlainLayout, VllmLayout
from pa_tutorial.paging.prefix_cache import PrefixCachingAllocator
from pa_tutorial.viz import layouts
from pa_tutorial.viz.blocks import snapshot
from pa_tutorial.viz.engine_figures import WAITS, draw_timeline
from pa_tutorial.viz.tiles import draw_tile, place_of
from tests.viz.pictures import texts_of


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
