"""`make refresh` makes what is out of date, and nothing else."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import refresh
from made_from import Sources, without_words
from refresh import Kind

TREE = {
    "constraints.txt": "torch==1\nnumba-cuda==1\nruff==1\n",
    "pa_tutorial/__init__.py": "",
    "pa_tutorial/ground.py": 'def one():\n    """One."""\n    return 1  # one\n',
    "pa_tutorial/above.py": '"""check("a_stage")"""\nfrom pa_tutorial import ground\n',
    "pa_tutorial/reader.py": 'FILE = Path(__file__).with_name("numbers.json")\n',
    "pa_tutorial/numbers.json": "[1, 2]",
    "pa_tutorial/stage.py": "import torch\nfrom numba import cuda\n",
    "pa_tutorial/asker.py": 'check("a_stage", short=True)\n',
    "pa_tutorial/starter.py": 'run(sys.executable, "-m", "pa_tutorial.ground")\n',
}
THINGS = ("above", "reader", "stage", "asker", "starter")


def digests(root: Path) -> dict[str, str]:
    sources = Sources(root, {"a_stage": {"pa_tutorial.stage"}})
    return {thing: sources.digest([f"pa_tutorial.{thing}"]) for thing in THINGS}


@pytest.mark.parametrize(
    ("file", "out_of_date"),
    {
        "pa_tutorial/__init__.py": {*THINGS},
        "pa_tutorial/ground.py": {"above", "starter"},
        "pa_tutorial/above.py": {"above"},
        "pa_tutorial/numbers.json": {"reader"},
        "pa_tutorial/stage.py": {"stage", "asker"},
        "pa_tutorial/another.py": set(),
    }.items(),
)
def test_a_change_makes_too_little_or_too_much(tmp_path: Path, file: str, out_of_date: set) -> None:
    before = digests(plant(tmp_path, TREE))
    plant(tmp_path, {file: TREE.get(file, "") + " "})
    after = digests(tmp_path)
    assert {thing for thing in THINGS if after[thing] != before[thing]} == out_of_date


@pytest.mark.parametrize(
    ("pin", "seen"), {"torch": True, "numba-cuda": True, "ruff": False}.items()
)
def test_another_version_of_a_library_is_missed(tmp_path: Path, pin: str, seen: bool) -> None:
    before = digests(plant(tmp_path, TREE))
    pins = TREE["constraints.txt"].replace(f"{pin}==1", f"{pin}==2")
    after = digests(plant(tmp_path, {"constraints.txt": pins}))
    changed = {thing for thing in THINGS if after[thing] != before[thing]}
    assert changed == ({"stage", "asker"} if seen else set())


def plant(root: Path, tree: dict[str, str]) -> Path:
    for name, text in tree.items():
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text(text, encoding="utf-8")
    return root


def test_words_are_taken_for_code_or_code_for_words() -> None:
    text = '"""A room."""\n\nSAYS = "# no comment"  # but this\n\n\n'
    text += 'def f():\n    """Two\n    lines."""\n    return 1\n'
    assert without_words(text) == 'SAYS = "# no comment"\ndef f():\n    return 1'


def test_what_was_done_before_an_interrupt_is_lost(tmp_path: Path, monkeypatch) -> None:
    def make(names: list[str]) -> Iterator[tuple[str, str]]:
        yield names[0], ""
        raise KeyboardInterrupt

    kind = Kind(1, lambda: ["first", "second"], lambda name: f"digest of {name}", make)
    monkeypatch.setattr(refresh, "KINDS", {"things": kind})
    monkeypatch.setattr(refresh, "DIGESTS", tmp_path / "refreshed.json")
    refresh.note({"things first": "another digest"})
    assert refresh.out_of_date("things") == ["first", "second"]
    with pytest.raises(KeyboardInterrupt):
        refresh.refresh("things", ["first", "second"])
    assert refresh.out_of_date("things") == ["second"]


def test_digests_of_what_is_gone_stay(tmp_path: Path, monkeypatch) -> None:
    names = ["here", "gone"]
    kind = Kind(1, lambda: names, str, lambda names: iter(()))
    monkeypatch.setattr(refresh, "KINDS", {"things": kind})
    monkeypatch.setattr(refresh, "DIGESTS", tmp_path / "refreshed.json")
    refresh.note({"things here": "here", "things gone": "gone"})
    names.remove("gone")
    refresh.note({})
    assert refresh.recorded() == {"things here": "here"}
