"""The microscope under a pointer: what an element means, and what a click does."""

from pathlib import Path

import pytest
from microscope_pages import Reader, reference
from microscope_sizes import BLOCK_SIZE, ITEMSIZE, LAYOUT, physical, position


@pytest.fixture
def reader(read_page, reference_html: Path) -> Reader:
    return read_page(reference_html)


@pytest.mark.parametrize("part", ["K", "V"])
def test_the_pointer_names_token_block_head_and_element(reader: Reader, part: str) -> None:
    """Would catch: rows and columns exchanged, blocks in the order of the pool, a wrong byte."""
    x, per_block = 16 // ITEMSIZE, LAYOUT.head_size * BLOCK_SIZE
    for logical, inside in ((0, 0), (2, 3 * BLOCK_SIZE * x + 2 * x + 4), (7, 777), (10, 2047)):
        if part == "K":  # a row of the pane is one piece of every token
            rest, in_piece = divmod(inside, x)
            piece, offset = divmod(rest, BLOCK_SIZE)
            element = piece * x + in_piece
            place = LAYOUT.k_element(physical(logical), 0, offset, element)
        else:
            element, offset = divmod(inside, BLOCK_SIZE)
            place = LAYOUT.v_element(physical(logical), 0, offset, element)
        name = f"{part.lower()}_cache"
        first = next(a.address for a in reference()[1].trace.arrays if a.name == name)
        assert reader.hover(f"{part}:", logical * per_block + inside)[:3] == [
            f"{name}[{place}]",
            f"token {logical * BLOCK_SIZE + offset} · logical block {logical} · "
            f"physical block {physical(logical)} · offset {offset} · KV head 0 · "
            f"element {element}",
            f"byte {place * ITEMSIZE:,} of {name} (address {first + place * ITEMSIZE})",
        ]


def test_a_click_on_the_strip_shows_another_block(reader: Reader) -> None:
    """Would catch: a strip that is cut at other places than its picture."""
    canvas = reader.canvas("V:")
    width = canvas.bounding_box()["width"]
    for logical in (7, 0, 10):
        canvas.click(position={"x": (logical + 0.5) / 11 * width, "y": 8})
        assert reader.page.evaluate(
            "microscope.grids.find(g => /^V:/.test(g.shape.title)).tile"
        ) == (logical)


def test_a_click_picks_an_element(reader: Reader) -> None:
    """Would catch: a click that picks a neighbour, or shows another element's history."""
    reader.canvas("K:").click(position=reader.place("K:", 0))  # another one first
    place = LAYOUT.k_element(physical(2), 0, 2, 28)
    reader.canvas("K:").click(position=reader.place("K:", 2 * 2048 + place - physical(2) * 2048))
    assert (
        reader.text(".details .caption") == f"k_cache[{place}]: touched 1 time, every lane counted"
    )
    when = reference()[1].trace.only(array="k_cache", warp=2, turns={"block_idx": 0, "j": 3})
    (row,) = reader.page.locator(".details tr[data-i]").all_inner_texts()
    expected = [f"{position(when.records.instruction[0]):,}", "2", "5", "reads"]
    assert row.split("\t")[:4] == expected


def test_a_click_on_the_time_line_goes_there(reader: Reader) -> None:
    """Would catch: a time line whose cursor does not follow the pointer."""
    canvas = reader.page.locator(".timeline")
    width = canvas.bounding_box()["width"]
    all_of_it = reference()[1].trace.num_instructions
    for part in (0.25, 0.5, 0.9):
        canvas.click(position={"x": 48 + part * (width - 48), "y": 20})
        words = reader.text(".sentence").split()
        assert int(words[1].replace(",", "")) == pytest.approx(part * all_of_it, abs=30)
