"""Random operations on a reader's my_pages.py: what is right passes, and what is wrong is named."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pa_tutorial.checks.__main__ import INTERRUPTED, main
from pa_tutorial.checks.block_manager_check import STORIES
from pa_tutorial.checks.printed import MOST_LINES
from pa_tutorial.exercises import pages
from pa_tutorial.paging.block_pages import BlockPages

pytest.importorskip("hypothesis", reason="hypothesis draws the operations: an extra for the lab")
from pa_tutorial.checks.random_operations import shortest_failure

OURS = Path(pages.__file__).read_text(encoding="utf-8")

# A function of my_pages.py as somebody could write it; the operations; what the last one says.
WRONG = {
    "a fork counts no reference": (
        """
def fork(pool, sequence):
    return Sequence(sequence.tokens.copy(), sequence.blocks.copy())
""",
        ['append a "A"', "fork a b", 'append a "B"'],
        "a wrote into block 1, which b reads too (its reference count must be 2)",
    ),
    "a fork has the same list of blocks": (
        """
def fork(pool, sequence):
    for block in sequence.blocks:
        pool.ref_counts[block] += 1
    return Sequence(sequence.tokens.copy(), sequence.blocks)
""",
        ['append a "A"', "fork a b", 'append b "B"'],
        "the table of a changed too, from [1]: [2]",
    ),
    "a shared tail is written": (
        """
def copy_on_write(pool, sequence):
    return []
""",
        ['append a "A"', "fork a b", 'append b "B"'],
        "b wrote into block 1, which a reads too",
    ),
    "the table is stale after a copy": (
        """
def copy_on_write(pool, sequence):
    old = sequence.blocks[-1]
    if pool.ref_counts[old] == 1:
        return []
    release(pool, old)
    return [(old, allocate(pool))]
""",
        ['append a "A"', "fork a b", 'append b "B"'],
        "the table of b is stale: block 1 is to be copied to block 2, but the table is [1]",
    ),
    "a copy keeps its reference": (
        """
def copy_on_write(pool, sequence):
    old = sequence.blocks[-1]
    if pool.ref_counts[old] == 1:
        return []
    sequence.blocks[-1] = allocate(pool)
    return [(old, sequence.blocks[-1])]
""",
        ['append a "A"', "fork a b", 'append a "B"', 'append b "C"'],
        "b copied block 1, although no other sequence has it: its reference count is too high",
    ),
    "nothing is copied": (
        """
def copy_on_write(pool, sequence):
    old = sequence.blocks[-1]
    if pool.ref_counts[old] > 1:
        sequence.blocks[-1] = allocate(pool)
        release(pool, old)
    return []
""",
        ['append a "A"', "fork a b", 'append b "B"'],
        "b reads nothing for its token 0, A, in block 2, offset 0",
    ),
    "a block is freed with its first reader": (
        """
def release(pool, block):
    pool.ref_counts[block] -= 1
    pool.free_blocks.append(block)
""",
        ['append a "A"', "fork a b", 'append a "B"'],
        "block 1 is free, although b has it: a reference was lost",
    ),
    "blocks are freed twice": (
        """
def free(pool, sequence):
    pool.free_blocks += sequence.blocks + sequence.blocks
    sequence.tokens, sequence.blocks = [], []
""",
        ['append a "A"', "free a"],
        "freed twice: block 1 (num_free is 7; 6 blocks are in no table)",
    ),
    "blocks are never freed": (
        """
def free(pool, sequence):
    sequence.tokens, sequence.blocks = [], []
""",
        ['append a "A"', "free a"],
        "block 1 left the tables but didn't become free: a reference count is too high",
    ),
    "a block is allocated twice": (
        """
def allocate(pool):
    pool.free_blocks.pop()
    pool.ref_counts[1] = 1
    return 1
""",
        ['append a "ABCDE"'],
        "a has block 1 twice: blocks [1, 1]; it was allocated twice",
    ),
    "block 0 is allocated": (
        """
class Pool(Pool):
    def __init__(self, num_blocks, block_size):
        super().__init__(num_blocks, block_size)
        self.free_blocks.append(0)
""",
        ['append a "A"'],
        "a has block 0: blocks [0]; block 0 is the null block",
    ),
    "a table is longer than needed": (
        """
def append_token(pool, sequence, token):
    copies = copy_on_write(pool, sequence) if sequence.blocks else []
    sequence.tokens.append(token)
    if len(sequence.tokens) % pool.block_size in (0, 1):
        sequence.blocks.append(allocate(pool))
    return copies
""",
        ['append a "ABCD"'],
        "the table of a is longer than needed: [1, 2]; 4 tokens of 4 to a block need 1 block",
    ),
    "a slot is off by a block": (
        """
def slot_mapping(block_table, positions, block_size):
    return block_table[positions // block_size - 1] * block_size + positions % block_size
""",
        ['append a "ABCDE"'],
        "token 0 of a goes to slot 8, which is block 2, offset 0; by its table [1, 2] it must go",
    ),
    "what is refused has changed something": (
        """
class Pages(Pages):
    def blocks_needed(self, sequence, num_tokens):
        return 0
""",
        ['append a "A"', 'append a "BCDEFGHIJ"', 'append a "KLMNOPQRS"'],
        "it was refused, but the table of a changed from",
    ),
    "an end of the program": (
        """
def fork(pool, sequence):
    raise SystemExit(3)
""",
        ['append a "A"', "fork a b"],
        "it raised SystemExit: 3",
    ),
    "slots are no whole numbers": (
        """
class Pages(Pages):
    def append(self, name, token_ids):
        appended = super().append(name, token_ids)
        return Appended(appended.copies, [1.0 * slot for slot in appended.slots])
""",
        ['append a "A"'],
        "slots is [4.0]; it must be a list of whole numbers",
    ),
    "slots are an array": (
        """
class Pages(Pages):
    def append(self, name, token_ids):
        appended = super().append(name, token_ids)
        return Appended(appended.copies, torch.tensor(appended.slots))
""",
        ['append a "A"'],
        "slots is tensor([4]); it must be a list of whole numbers",
    ),
    "there is no list of copies": (
        """
class Pages(Pages):
    def append(self, name, token_ids):
        return Appended(None, super().append(name, token_ids).slots)
""",
        ['append a "A"'],
        "copies is None; it must be a list of pairs of blocks",
    ),
    "the tokens are changed": (
        """
class Pages(Pages):
    def append(self, name, token_ids):
        appended = super().append(name, token_ids)
        token_ids.clear()
        return appended
""",
        ['append a "A"'],
        "append changed the list of tokens that it was given",
    ),
    "two of three readers are counted": (
        """
def copy_on_write(pool, sequence):
    old = sequence.blocks[-1]
    if pool.ref_counts[old] != 2:
        return []
    sequence.blocks[-1] = allocate(pool)
    release(pool, old)
    return [(old, sequence.blocks[-1])]
""",
        ['append a "A"', "fork a b", "fork b c", 'append b "B"'],
        "b wrote into block 1, which a and c read too (its reference count must be 3)",
    ),
    "an exception": (
        """
def fork(pool, sequence):
    return sequence.copy()
""",
        ['append a "A"', "fork a b"],
        "it raised AttributeError: 'Sequence' object has no attribute 'copy'",
    ),
}


def my_pages(folder: Path, text: str) -> str:
    path = folder / "my_pages.py"
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_a_right_file_passes(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    assert main(["block_manager", my_pages(tmp_path, OURS)]) == 0
    said = capsys.readouterr().out
    assert f"block_manager: {len(STORIES)} of {len(STORIES)} cases, against plain lists" in said
    assert "my_pages.py: random operations found nothing wrong." in said


@pytest.mark.rest("slots that are no whole numbers are refused")
def test_integers_of_other_libraries_are_whole_numbers(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    """And of what the file prints, a few lines are shown."""
    theirs = """
class Pages(Pages):
    def append(self, name, token_ids):
        print(name)
        appended = super().append(name, token_ids)
        return Appended(appended.copies, [*torch.tensor(appended.slots)])

    def table(self, name):
        return torch.tensor(self.sequences[name].blocks)
"""
    assert main(["block_manager", my_pages(tmp_path, OURS + theirs)]) == 0
    said = capsys.readouterr().out
    assert "lines more that it printed" in said
    assert said.count("\n") == MOST_LINES + 3


def test_what_two_objects_share_is_told_of_a_file(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    shared = "\nNONE = Sequence()\n"
    text = OURS.replace("get(name, Sequence())", "get(name, NONE)") + shared
    assert main(["block_manager", my_pages(tmp_path, text)]) == 1
    assert "Does anything outlive an object of Pages, such as a list" in capsys.readouterr().out


@pytest.mark.rest("test_page_blanks.py: an endless answer")
def test_a_loop_without_an_end_is_named(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    endless = "\ndef fork(pool, sequence):\n    while True: pass\n"
    assert main(["block_manager", my_pages(tmp_path, OURS + endless)]) == 1
    said = " ".join(capsys.readouterr().out.split())
    assert "1 second and no end: line " in said
    assert "of fork: while True: pass" in said
    assert "random operations" not in said


def test_an_interrupt_gets_one_line(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    interrupt = "\ndef fork(pool, sequence):\n    raise KeyboardInterrupt\n"
    assert main(["block_manager", my_pages(tmp_path, OURS + interrupt)]) == INTERRUPTED
    said = capsys.readouterr().out
    assert "my_pages.py: interrupted, no result; it raised KeyboardInterrupt: line " in said
    assert said.count("\n") == 1


AT_ONCE = (
    *("a shared tail is written", "block 0 is allocated", "a slot is off by a block"),
    *("a table is longer than needed", "a block is allocated twice", "blocks are freed twice"),
    *("the tokens are changed", "slots are an array", "there is no list of copies"),
)


@pytest.mark.rest(keep=[*AT_ONCE])
@pytest.mark.parametrize("what", WRONG)
def test_the_fewest_operations_that_go_wrong_are_shown(
    what: str, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    function, operations, says = WRONG[what]
    assert main(["block_manager", my_pages(tmp_path, OURS + function)]) == 1
    first, second, *lines = capsys.readouterr().out.splitlines()
    assert first.startswith("my_pages.py: ")
    assert first.endswith(f" of {len(STORIES)} stories are right.")
    assert second.startswith("my_pages.py: wrong, in a pool of 7 blocks of ")
    shown = [line[2:].split("  ")[0] for line in lines if line[2] != " "]
    assert shown == operations
    assert says in " ".join(" ".join(lines).split())


@pytest.mark.parametrize("make_pages", [BlockPages, lambda *sizes: BlockPages(*sizes, False)])
def test_ours_is_right(make_pages: Callable) -> None:
    assert shortest_failure(make_pages) == ""


def test_what_two_objects_share_is_not_blamed_on_one() -> None:
    calls = []

    class Sometimes(BlockPages):
        def fork(self, name: str, new: str) -> None:
            calls.append(name)
            if len(calls) % 3:
                super().fork(name, new)

    assert "go wrong only sometimes" in shortest_failure(Sometimes)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (None, "my_pages.py: no such file"),
        ("def (", "my_pages.py isn't Python: line 1: invalid syntax"),
        ("pages = 3", "my_pages.py has no class Pages"),
        ("import nothing_of_that_name", "my_pages.py can't be run: it raised ModuleNotFoundError"),
        ("raise SystemExit", "my_pages.py can't be run: it raised SystemExit"),
        ("class Pages: pass", "my_pages.py: Pages(8, 4) fails: it raised TypeError"),
    ],
)
def test_a_file_that_cannot_be_tried_gets_one_line(
    text: str | None, says: str, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    path = str(tmp_path / "my_pages.py") if text is None else my_pages(tmp_path, text)
    assert main(["block_manager", path]) == 1
    said = capsys.readouterr().out
    assert says in said
    assert said.count("\n") == 1


def test_without_hypothesis_one_line_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "hypothesis", None)
    assert main(["block_manager", my_pages(tmp_path, OURS)]) == 1
    assert capsys.readouterr().out == (
        "random operations need hypothesis: pip install hypothesis\n"
    )
