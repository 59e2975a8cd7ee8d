"""Random operations on a reader's my_pages.py: what is right passes, and what is wrong is named.

What each mistake is called, the stories say too: test_stories.py.
"""

import sys
from pathlib import Path

import pytest

from pa_tutorial.checks.__main__ import main
from pa_tutorial.checks.block_manager_check import STORIES
from pa_tutorial.exercises import pages

pytest.importorskip("hypothesis", reason="hypothesis draws the operations: an extra for the lab")

OURS = Path(pages.__file__).read_text(encoding="utf-8")
FREED_TWICE = """
def free(pool, sequence):
    pool.free_blocks += sequence.blocks + sequence.blocks
    sequence.tokens, sequence.blocks = [], []
"""
CHANGED_WHEN_REFUSED = """
class Pages(Pages):
    def blocks_needed(self, sequence, num_tokens):
        return 0
"""


def checked(folder: Path, text: str) -> int:
    """What the command line returns for a file with this text."""
    path = folder / "my_pages.py"
    path.write_text(text, encoding="utf-8")
    return main(["block_manager", str(path)])


def test_a_right_file_passes(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    assert checked(tmp_path, OURS) == 0
    said = capsys.readouterr().out
    assert f"block_manager: {len(STORIES)} of {len(STORIES)} cases, against plain lists" in said
    assert "my_pages.py: random operations found nothing wrong." in said


@pytest.mark.parametrize(
    ("wrong", "operations", "says"),
    [
        (FREED_TWICE, ['append a "A"', "free a"], "freed twice: block 1 (num_free is 7; 6 blocks"),
        (
            CHANGED_WHEN_REFUSED,
            ['append a "A"', 'append a "BCDEFGHIJ"', 'append a "KLMNOPQRS"'],
            "it was refused, but the table of a changed from",
        ),
    ],
)
def test_the_fewest_operations_that_go_wrong_are_shown(
    wrong: str, operations: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    assert checked(tmp_path, OURS + wrong) == 1
    first, second, *lines = capsys.readouterr().out.splitlines()
    assert first.endswith(f" of {len(STORIES)} stories are right.")
    assert second.startswith("my_pages.py: wrong, in a pool of 7 blocks of ")
    assert [line[2:].split("  ")[0] for line in lines if line[2] != " "] == operations
    assert says in " ".join(" ".join(lines).split())


def test_what_two_objects_share_is_told_of_a_file(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    shared = "\nNONE = Sequence()\n"
    assert checked(tmp_path, OURS.replace("get(name, Sequence())", "get(name, NONE)") + shared) == 1
    assert "Does anything outlive an object of Pages" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("def (", "my_pages.py isn't Python: line 1"),
        ("pages = 3", "my_pages.py has no class Pages"),
        ("import nothing_of_that_name", "my_pages.py can't be run: it raised ModuleNotFoundError"),
        ("raise SystemExit", "my_pages.py can't be run: it raised SystemExit"),
        ("class Pages: pass", "my_pages.py: Pages(8, 4) fails: it raised TypeError"),
    ],
)
def test_a_file_that_cannot_be_tried_gets_one_line(
    text: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    assert checked(tmp_path, text) == 1
    said = capsys.readouterr().out
    assert says in said
    assert said.count("\n") == 1


def test_without_hypothesis_one_line_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "hypothesis", None)
    assert checked(tmp_path, OURS) == 1
    assert capsys.readouterr().out == "random operations need hypothesis: pip install hypothesis\n"
