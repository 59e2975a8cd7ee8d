"""The microscope without a mouse: every key that its help names."""

import re
from pathlib import Path

import numpy as np
import pytest
from microscope_pages import Reader, reference, stops

from pa_tutorial.simt import Trace


@pytest.fixture
def reader(read_page, reference_html: Path) -> Reader:
    """A page into which somebody came by the Tab key."""
    reader = read_page(reference_html)
    reader.press("Tab")
    return reader


def the_trace() -> Trace:
    return reference()[1].trace


def tab_to(reader: Reader, css: str) -> None:
    for _ in range(80):
        if reader.page.evaluate("css => document.activeElement.matches(css)", css):
            return
        reader.press("Tab")
    raise AssertionError(f"the Tab key does not come to {css}")


def test_arrows_home_and_end_step(reader: Reader) -> None:
    """Would catch: a step that stops at accesses to local arrays, or runs over the ends."""
    expected = stops(the_trace())
    reader.press("End")
    assert reader.at == expected[-1]
    reader.press("ArrowRight")
    assert reader.at == expected[-1]
    reader.press("Shift+ArrowLeft", "ArrowLeft")
    assert reader.at == expected[-12]
    reader.press("Home", "ArrowLeft")
    assert reader.at == expected[0]
    reader.press("Shift+ArrowRight", "ArrowRight")
    assert reader.at == expected[11]


def test_local_arrays_are_stepped_through_when_asked_for(reader: Reader) -> None:
    """Would catch: a box that changes nothing."""
    numbers = np.unique(the_trace().records.instruction)
    first = int(the_trace().only(space="local").records.instruction[0])
    reader.go(first - 1)
    tab_to(reader, "input[type=checkbox]")
    reader.press(" ", "ArrowRight", "ArrowRight")  # the keys work at once
    assert reader.at == numbers[numbers >= first][1]


def test_w_and_l_choose_a_warp_and_a_lane(reader: Reader) -> None:
    """Would catch: a key that leaves out a warp, or a choice that is not shown."""
    warps = reader.page.get_by_label("warp", exact=True)
    for warp in ("0", "1", "2", "3", ""):
        reader.press("w")
        assert warps.input_value() == warp
    reader.press("w", "w", "w", "L", "L")
    chosen = reader.page.locator(".chips .chosen")
    assert chosen.inner_text() == "30"
    assert reader.at in stops(the_trace(), warp=2, lane=30)
    for number in [n for n in stops(the_trace(), warp=2, lane=30) if n > reader.at][:40]:
        reader.press("ArrowRight")
        assert reader.at == number
    reader.press("l", "l")
    assert chosen.count() == 0
    reader.press("l")
    assert chosen.inner_text() == "0"
    reader.press("Escape")
    assert chosen.count() == 0
    assert warps.input_value() == ""


def test_n_goes_to_the_next_visit_of_a_line(reader: Reader) -> None:
    """Would catch: a visit of another line, of another warp than the one that is followed."""
    visits = np.unique(the_trace().only(array="v_cache", warp=1).records.instruction).tolist()
    reader.press("w", "w")
    reader.go(visits[0])
    for number in visits[1:20]:
        reader.press("n")
        assert reader.at == number
    reader.press("N", "N")
    assert reader.at == visits[17]


def test_space_plays_and_stops(reader: Reader) -> None:
    """Would catch: a clock that runs on, or never starts."""
    speed = reader.page.get_by_label("steps a second")
    speed.select_option("50/s")
    reader.press(" ")
    for _ in range(100):
        reader.page.wait_for_timeout(50)
        if reader.at > 20:
            break
    assert reader.at > 20
    assert "stop" in reader.text(".bar")
    reader.press(" ")
    at = reader.at
    assert at in stops(the_trace())
    reader.page.wait_for_timeout(100)
    assert reader.at == at
    assert "stop" not in reader.text(".bar")


def test_f_finds_an_element(reader: Reader) -> None:
    """Would catch: keys of a name that are taken for commands; a field one cannot leave."""
    at = reader.at
    reader.press("f")
    reader.keyboard.type("logits[17]")
    reader.press("Enter", "Escape")
    assert reader.at == at
    assert reader.text(".details .caption").startswith("logits[17]: touched ")
    reader.press("ArrowRight")
    assert reader.at == stops(the_trace())[1]
    reader.press("Escape")
    assert "logits[17]" not in reader.text(".details")


def test_the_source_is_a_list_of_places_to_jump_to(reader: Reader) -> None:
    """Would catch: a list that only a mouse can use; Enter on a line that was not chosen."""
    reader.press("w", "l")
    numbers = the_trace().only(array="k_cache", warp=0).records
    visits = np.unique(numbers.instruction[numbers.lane == 0]).tolist()
    tab_to(reader, ".listing")
    line = reader.page.locator(".line.cursor")
    for _ in range(100):
        reader.press("ArrowDown")
        if "load_k(" in line.inner_text():
            break
    reader.press("Enter")
    assert reader.at == visits[0]
    reader.press("Enter", "Enter")
    assert reader.at == visits[2]
    reader.press("Shift+Enter")
    assert reader.at == visits[1]


def test_the_arrows_move_in_a_pane_and_enter_picks(reader: Reader) -> None:
    """Would catch: a pane that says nothing without a pointer; steps in place of moves."""
    at = reader.at
    tab_to(reader, "canvas[aria-label^='K:']")
    reader.press("ArrowRight", "ArrowRight", "ArrowDown", "ArrowDown", "ArrowLeft")
    # the second row below the first: piece 2, its first element
    assert "offset 0 · KV head 0 · element 16" in reader.text(".tip")
    reader.press("ArrowUp", "Enter")
    assert reader.at == at
    first = int(reference()[0].arguments["block_tables"][0, 0]) * 2048
    assert reader.text(".details .caption").startswith(f"k_cache[{first + 16 * 8}]: touched")
    reader.press("Tab")
    assert not reader.page.locator(".tip").is_visible()


def test_the_help_opens_and_names_every_key(reader: Reader) -> None:
    """Would catch: a key that nobody can know of."""
    tab_to(reader, "button[title=keys]")
    reader.press("Enter")
    words = reader.text(".help")
    script = "microscope.key.toString()"
    keys = re.findall(r"^ {6}\"?(\w+| )\"?: \(\) =>", reader.page.evaluate(script), re.M)
    assert {"n", "N", "w", "l", "L", "f", "Home", "End", "Escape", " "} <= {*keys}
    spoken = {"ArrowRight": "→", "ArrowLeft": "←", " ": "space", "Escape": "Esc"}
    for key in keys:
        assert re.search(rf"(?<!\w){spoken.get(key, key)}(?!\w)", words), key
    reader.press("Enter")
    assert not reader.page.locator(".help").is_visible()


def test_buttons_and_chips_are_reached_by_tab(reader: Reader) -> None:
    """Would catch: controls that are no buttons."""
    tab_to(reader, "button[title^='one step (']")
    reader.press("Enter", " ")
    assert reader.at == stops(the_trace())[2]
    tab_to(reader, ".chips button:nth-child(1)")
    reader.press(*["ArrowRight"] * 6, "ArrowLeft", " ")
    assert reader.text(".chips .chosen") == "5"
    reader.press("Tab")
    assert not reader.page.evaluate("document.activeElement.matches('.chips *')"), "one stop"


def test_keys_work_at_once_and_after_a_choice(read_page, reference_html: Path) -> None:
    """Would catch: a page that must be clicked first; arrows that change the warp in its list."""
    reader = read_page(reference_html)
    at = reader.at
    reader.press("ArrowRight")
    assert reader.at > at
    warps = reader.page.get_by_label("warp", exact=True)
    warps.select_option("warp 1")
    reader.press("ArrowRight", "ArrowRight")
    assert warps.input_value() == "1"
    assert reader.at in stops(the_trace(), warp=1)
