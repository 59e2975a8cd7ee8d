"""my_pages.py: what a reader has written in 01 to 06 is kept, taken up, and never lost."""

import runpy
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pa_tutorial.checks import check
from pa_tutorial.exercises import attempt
from pa_tutorial.exercises.blank import all_blanks
from pa_tutorial.exercises.my_pages import my_pages, save_pages
from pa_tutorial.exercises.ours import is_ours
from pa_tutorial.exercises.saved_files import PLACE, locked, names_of_reader
from pa_tutorial.exercises.whose import blanks_in
from pa_tutorial.kernels.sources import source_of
from tests.exercises.blank_cells import change, changed, files_in, function_of

HEAD = "def num_blocks(num_tokens: int, block_size: int) -> int:\n"
MARK = "# 02 · Memory waste"
NUM_BLANKS = len(blanks_in("pages"))


def num_blocks(body: str, before: str = "") -> Callable:
    return function_of(all_blanks()["num_blocks"], f"{before}{HEAD}    {body}\n")


MINE = num_blocks("return -(-num_tokens // block_size)")
STORE = changed("store")


@pytest.fixture(autouse=True)
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(PLACE, str(tmp_path / "my_kernel"))
    return tmp_path / "my_pages.py"


def yours(path: Path) -> set[str]:
    return names_of_reader(path.read_text(encoding="utf-8"))


def test_a_notebook_begins_with_what_was_saved_and_says_whose_it_is(
    path: Path, capsys: pytest.CaptureFixture
) -> None:
    save_pages(my_pages(MINE).store)  # ours: nothing is written
    assert files_in(path.parent) == []
    assert my_pages().num_blocks(5, 4) == 2
    assert f"no my_pages.py yet: 0 of {NUM_BLANKS} functions are" in capsys.readouterr().out
    save_pages(MINE, my_pages(MINE).store)
    assert "my_pages.py is written. Yours: num_blocks. Ours: " in capsys.readouterr().out
    assert yours(path) == {"num_blocks"}
    mine = my_pages()
    assert capsys.readouterr().out == f"my_pages.py: 1 of {NUM_BLANKS} functions is yours.\n"
    assert not is_ours(mine.num_blocks)
    assert is_ours(mine.store)
    assert "return -(-num_tokens" in source_of(mine.num_blocks).text
    pages = runpy.run_path(str(path))["Pages"](num_blocks=8, block_size=4)  # plain Python
    assert pages.append("a", range(5)).slots == [4, 5, 6, 7, 8]


def test_the_whole_runs_with_what_the_reader_has_so_far_and_its_helpers(path: Path) -> None:
    helpers = "def up(a, b): return down(a, b)\n\ndef down(a, b): return 1 + a\n\n"
    save_pages(num_blocks("return up(num_tokens, block_size)", helpers))
    assert yours(path) == {"num_blocks", "up", "down"}
    assert my_pages(STORE).num_blocks(4, 4) == 5
    assert my_pages(STORE, MINE).num_blocks(4, 4) == 1  # the newer one
    assert check("block_manager", my_pages(MINE).Pages).ok


def test_what_is_of_no_use_in_the_file_is_named_and_the_rest_is_saved(
    path: Path, capsys: pytest.CaptureFixture
) -> None:
    unknown = changed("release", ("pool.", "np.pool."))
    save_pages(num_blocks("..."), unknown, len, STORE)
    words = capsys.readouterr().out
    for says in ("num_blocks isn't finished: ", "release uses np: ", "len has no source"):
        assert says in words
    assert yours(path) == {"store"}


def test_of_a_file_of_another_version_the_rest_is_taken_up(
    path: Path, capsys: pytest.CaptureFixture
) -> None:
    save_pages(MINE, STORE, changed("release"), changed("fork"))
    change(path, "(num_tokens: int, block_size", "(num_tokens")
    change(path, "def release(pool: Pool", "def release(pool: exit()")
    change(path, "Sequence) -> Sequence:\n", "Sequence) -> Sequence:\n    SIZE\n")
    mine = my_pages()
    words = capsys.readouterr().out
    assert "num_blocks takes (num_tokens); it must" in words
    assert "release can't be defined: SystemExit" in words
    assert "fork uses SIZE: pages.py has no such name" in words
    assert f"1 of {NUM_BLANKS} functions is yours.\n" in words
    assert [is_ours(one) for one in (mine.num_blocks, mine.release, mine.fork)] == [True] * 3
    assert not is_ours(mine.store)


DAMAGED: dict[str, tuple[str, str]] = {
    "is damaged: ": (HEAD, HEAD.replace("(", "(((")),
    "YOURS names num_blocks, which it lacks": ("def num_blocks(", "def blocks("),
    "it can't be parsed": (MARK, f"x = {'-' * 100_000}1"),
    "5}; it must be": ('YOURS = (\n    "num_blocks",\n)', "YOURS = {[]: 5}"),
    "it isn't UTF-8": ("# Mine", "# \udcff"),
}


@pytest.mark.parametrize("words", DAMAGED)
def test_a_damaged_file_is_named_and_set_aside_and_ours_take_over(
    path: Path, words: str, capsys: pytest.CaptureFixture
) -> None:
    save_pages(MINE)
    change(path, *DAMAGED[words])
    damaged = path.read_bytes()
    assert is_ours(my_pages(STORE).num_blocks)  # which says nothing, and moves nothing
    assert path.read_bytes() == damaged
    save_pages(MINE)
    path.write_bytes(damaged)
    assert is_ours(my_pages().num_blocks)
    assert capsys.readouterr().out.count(words) == 2
    assert files_in(path.parent) == ["my_pages_1.py", "my_pages_2.py"]
    assert [one.read_bytes() for one in path.parent.glob("*.py")] == [damaged] * 2


def test_what_the_reader_has_beside_functions_stays_and_what_came_later_is_added(
    path: Path,
) -> None:
    save_pages(MINE)
    change(path, MARK, f"SIZE = 4\n\n\ndef twice(x):\n    return SIZE * x // 2\n\n\n{MARK}")
    save_pages(STORE)
    assert runpy.run_path(str(path))["twice"](2) == 4
    assert files_in(path.parent) == ["my_pages.py"]
    change(path, "def release(", "def give_back(")  # of an earlier version, and more than ours
    save_pages(num_blocks("return 3"))
    assert yours(path) == {"num_blocks", "store"}
    assert files_in(path.parent) == ["my_pages.py", "my_pages_1.py"]
    assert callable(runpy.run_path(str(path))["release"])


def test_what_a_notebook_began_with_never_replaces_what_another_saved_since(path: Path) -> None:
    save_pages(MINE)
    mine = my_pages()
    save_pages(num_blocks("return (num_tokens + block_size - 1) // block_size"))
    assert "return -(-" in (path.with_name("my_pages_1.py")).read_text(encoding="utf-8")
    save_pages(mine.num_blocks, STORE)
    assert "+ block_size - 1" in source_of(my_pages().num_blocks).text
    assert files_in(path.parent) == ["my_pages.py", "my_pages_1.py"]


def test_a_save_waits_for_that_of_another_notebook(path: Path) -> None:
    save_pages(STORE)
    theirs = path.read_text(encoding="utf-8")
    path.unlink()
    with ThreadPoolExecutor(1) as pool:
        with locked(path):
            ours = pool.submit(save_pages, MINE)
            time.sleep(0.2)
            assert not ours.done()
            path.write_text(theirs, encoding="utf-8")
        ours.result()
    assert yours(path) == {"num_blocks", "store"}


def test_what_was_saved_takes_part_in_a_verdict_and_the_notebook_goes_on_with_it(
    capsys: pytest.CaptureFixture,
) -> None:
    save_pages(num_blocks("return num_tokens // block_size"))
    attempt("store", STORE)
    assert "with your `num_blocks`, not yet." in capsys.readouterr().out
    save_pages(MINE)
    assert not is_ours(attempt("num_blocks", num_blocks("...")))
    assert "num_blocks, as you saved it: right in all" in capsys.readouterr().out


def test_a_place_that_cannot_be_written_is_named(path: Path, monkeypatch, capsys) -> None:
    path.touch()
    monkeypatch.setenv(PLACE, str(path / "my_kernel"))
    save_pages(MINE)
    assert "my_pages.py can't be written: " in capsys.readouterr().out
    assert is_ours(my_pages().num_blocks)
