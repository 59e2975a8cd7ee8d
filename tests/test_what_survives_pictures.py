"""The pictures of notebook 18 show what their data and formulas say."""

from datetime import date

import pytest
from matplotlib.figure import Figure

from pa_tutorial.attention.cache_bytes import DEEPSEEK_V3, LLAMA_2_7B, MODELS, intensity
from pa_tutorial.paging.append_only import AppendOnlyTable
from pa_tutorial.viz import append_only, latent, query_rows, time_line


def texts_of(figure: Figure) -> list[str]:
    return [text.get_text() for axes in figure.axes for text in axes.texts]


# The time line


def test_events_are_in_order_and_not_in_the_future() -> None:
    places = [event.place for event in time_line.EVENTS]
    assert places == sorted(places)
    assert places[-1] <= time_line.READ_ON
    for event in time_line.EVENTS:
        assert event.source
        year_and_month = event.place.isoformat()[:7]
        assert event.shown.startswith(year_and_month)


def test_the_title_counts_from_v2_to_the_removal() -> None:
    title = time_line.draw_time_line().get_suptitle()
    years = (date(2026, 7, 11) - date(2023, 10, 13)).days / 365.25
    assert f"{years:.1f} years" in title
    assert "the day on which it was opened" in title


def test_every_event_stands_there_with_its_source() -> None:
    texts = texts_of(time_line.draw_time_line())
    for event in time_line.EVENTS:
        assert {event.shown, event.what, event.source} <= set(texts)


# Tiles of a unified kernel


@pytest.mark.parametrize("query_lens", [(6, 1, 1), (1,), (17, 4, 1, 9)])
@pytest.mark.parametrize("group", [1, 4, 5, 16])
def test_every_query_token_is_in_one_tile_of_its_sequence(
    query_lens: tuple[int, ...], group: int
) -> None:
    found: list[list[int]] = [[] for _ in query_lens]
    for sequence, tokens in query_rows.tiles(query_lens, group):
        assert 1 <= len(tokens) * group <= query_rows.ROWS
        found[sequence] += tokens
    assert found == [list(range(new)) for new in query_lens]


def test_a_group_that_does_not_fit_is_named() -> None:
    with pytest.raises(ValueError, match="group is 17; it must be 1 to 16"):
        query_rows.tiles((1,), 17)


def test_the_picture_of_tiles_counts_rows_and_reads() -> None:
    figure = query_rows.draw_tiles((6, 1, 1), group=4)
    assert "4 tiles read K and V" in figure.get_suptitle()
    assert "reads them 32 times (32 of 64 rows are used)" in figure.get_suptitle()
    texts = texts_of(figure)
    assert sum(text.startswith("token ") for text in texts) == 32
    assert texts.count("decodes") == 2


# Tables that only grow


def test_two_copies_of_the_block_that_was_filled_later() -> None:
    joined, grown = append_only.frames()
    assert (joined.num_used, grown.num_used) == (4, 5)
    copies = [block for block in grown.blocks if bytes(block.tokens) == b"EFGH"]
    assert [block.owners for block in copies] == [("a",), ("b",)]
    title = append_only.draw_copies().get_suptitle()
    assert "takes 4 blocks, or 5" in title


def test_each_further_request_keeps_a_copy() -> None:
    for count in (1, 2, 3, 4):
        pool, _ = append_only.serve(AppendOnlyTable, count)
        assert pool.num_usable - pool.num_free == 1 + 2 * count


# Latents


def test_only_the_latent_cache_is_beyond_the_float32_units() -> None:
    without, with_cores = latent.ridges()
    assert without == pytest.approx(20, abs=0.1)
    assert with_cores == pytest.approx(295, abs=1)
    assert intensity(LLAMA_2_7B) == 1
    assert without < intensity(DEEPSEEK_V3) < with_cores
    assert [model.name for model in MODELS if intensity(model) > without] == ["DeepSeek-V3"]
    figure = latent.draw_intensity()
    assert "DeepSeek-V3 needs 242 operations for each byte" in figure.get_suptitle()
    assert "logarithmic" in figure.axes[0].get_xlabel()


def test_the_two_ways_say_the_sizes_of_deepseek_v3() -> None:
    texts = " ".join(texts_of(latent.draw_two_ways()))
    model = DEEPSEEK_V3
    assert f"T × ({model.latent_size} + {model.rope_size})" in texts
    assert f"T × {model.num_heads} × (128 + {model.rope_size})" in texts
    assert f"{model.num_heads} × ({model.latent_size} + {model.rope_size})" in texts
