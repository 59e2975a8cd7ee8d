"""Blanks of pages.py: tried among the reader's other functions, in plain Python."""

import subprocess
import sys
import time

import pytest

from pa_tutorial.checks.endless import SECONDS, stopped_if_endless
from pa_tutorial.checks.printed import MOST_LETTERS, MOST_LINES
from pa_tutorial.exercises import attempt
from pa_tutorial.exercises.blank import all_blanks
from pa_tutorial.exercises.blank_verdict import verdict
from pa_tutorial.exercises.ours import is_ours
from pa_tutorial.exercises.reader_files import made
from tests.exercises.blank_cells import changed, function_of, said
from tests.simt.microscope.pictures import texts_of

NUM_BLOCKS, STORE = all_blanks()["num_blocks"], all_blanks()["store"]
HEAD = "def num_blocks(num_tokens: int, block_size: int) -> int:\n"
RIGHT = "return -(-num_tokens // block_size)"


def tried(text: str, **names: object) -> str:
    """The verdict on this as num_blocks."""
    return verdict(NUM_BLOCKS, function_of(NUM_BLOCKS, text, **names))


SAID = {
    "while True: pass": "1 second and no end: line 2: while True: pass",
    "return num_blocks(num_tokens, block_size)": "it raised RecursionError: ",
    "return [7][num_tokens]": "line 2 of num_blocks: return [7][num_tokens]\n    where num_tokens",
    "raise SystemExit": "it returns nothing",
    "return np.ceil(num_tokens / block_size)": "num_blocks uses np: pages.py has no such name",
    "pass": "it returns nothing: the last line, `return …`, is missing",
}


@pytest.mark.parametrize("body", SAID)
def test_whatever_a_function_raises_is_told_with_its_line(body: str) -> None:
    words = tried(f"{HEAD}    {body}\n")
    assert SAID[body] in words
    assert not any(word in words for word in ("<cell", "/tmp", "Traceback"))


def test_what_can_not_take_the_place_of_ours_is_named() -> None:
    assert "it must take (num_tokens, block_size)" in tried("def num_blocks(n): 0\n")
    assert "without `async`" in tried(f"async {HEAD}    {RIGHT}\n")
    renamed = f"{HEAD}    {RIGHT}\n".replace("num_blocks", "blocks") + "\nnum_blocks = blocks\n"
    assert "is called blocks; it must be called num_blocks" in tried(renamed)


def test_a_helper_with_the_name_of_another_function_is_named() -> None:
    """Ours would be called in its place. What a notebook gives has the arguments of ours."""
    helper = "def share(block):\n    pass\n\n"
    calls = "pool.ref_counts[block] += 1", "share(block)"
    words = said("fork", ("def fork", f"{helper}def fork"), calls)
    assert words.startswith("it calls your share(block); pages.py has another function of that ")
    assert words.endswith("share(pool, block): rename yours")
    given = "def allocate(pool):\n    return 1\n\ndef copy_on_write(pool, s):\n    return []\n\n"
    assert said("append_token", ("def append", f"{given}def append")) == ""


def burn() -> None:
    """As an import does that a library makes when it is first used."""
    end = time.thread_time() + SECONDS + 0.1
    while time.thread_time() < end:
        pass


def test_one_slow_line_is_no_endless_loop() -> None:
    slow = function_of(NUM_BLOCKS, f"{HEAD}    burn()\n    {RIGHT}\n", burn=burn)
    with stopped_if_endless([slow]):
        assert slow(5, 4) == 2


def test_of_what_it_prints_the_beginning_is_shown(capsys: pytest.CaptureFixture) -> None:
    prints = "print('x' * 9_999, end='')\n    print('y')\n"
    assert tried(f"{HEAD}    {prints}    {RIGHT}\n") == ""
    *lines, last = capsys.readouterr().out.splitlines()
    assert lines == ["x" * MOST_LETTERS] * MOST_LINES
    assert "lines more that it printed" in last


def test_what_the_reader_has_not_met_yet_takes_no_part() -> None:
    """Such as what a notebook gives for a start, until it is a blank."""
    later = changed("store", ("num_blocks(", "1 + num_blocks("))
    assert said("num_blocks", store=later) == ""


def test_ours_calls_what_there_is_in_the_readers_notebook() -> None:
    ours = attempt("store", function_of(STORE, STORE.stub, num_blocks=lambda *_: 5))
    assert is_ours(ours)
    assert ours.__globals__["num_blocks"]() == 5


def test_what_is_wrong_is_drawn_beside_what_is_right_which_is_not_drawn_alone(shown: list) -> None:
    attempt("store", changed("store"))
    attempt("store", function_of(STORE, STORE.stub.replace("...", "raise KeyError")))
    assert not shown
    attempt("store", function_of(STORE, STORE.wrong[0].made_in(STORE.source)))
    (picture,) = shown
    assert any(words.startswith("yours") for words in texts_of(picture.figure))
    attempt("store", function_of(STORE, STORE.stub))
    assert shown[1].figure.get_suptitle().startswith("The goal")
    weights = all_blanks()["attention"]
    attempt("attention", function_of(weights, weights.wrong[0].made_in(weights.source)))
    assert len(shown) == 3


def test_a_verdict_of_pages_loads_no_simulator() -> None:
    program = f"""
import sys
from pa_tutorial.exercises import attempt
exec({HEAD + "    ..."!r})
attempt("num_blocks", num_blocks)
print({{"simt", "numba", "matplotlib", "triton"}} & sys.modules.keys())
"""
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, encoding="utf-8")
    assert said.stdout.splitlines()[-1] == "set()", said.stdout + said.stderr


def test_every_try_has_a_pages_of_its_own() -> None:
    """What a function keeps in a global name is not there at the next try."""
    assert made("pages", ()) is made("pages", ())
    one, other = (function_of(all_blanks()["num_blocks"], f"{HEAD}    {RIGHT}\n") for _ in "ab")
    assert made("pages", (("pages", (one,)),)) is not made("pages", (("pages", (other,)),))
