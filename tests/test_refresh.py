"""`make refresh` makes what is out of date, and nothing else."""

from pathlib import Path

import pytest
import refresh
from made_from import Sources
from refresh import Kind

TREE = {
    "constraints.txt": "torch==1\nruff==1\n",
    "pa_tutorial/__init__.py": "",
    "pa_tutorial/ground.py": "def one():\n    return 1\n",
    "pa_tutorial/above.py": '"""check("a_stage")"""\nfrom pa_tutorial import ground\n',
    "pa_tutorial/reader.py": 'FILE = Path(__file__).with_name("numbers.json")\n',
    "pa_tutorial/numbers.json": "[1, 2]",
    "pa_tutorial/stage.py": "import torch\n",
    "pa_tutorial/asker.py": 'check("a_stage", short=True)\n',
    "pa_tutorial/starter.py": 'run(sys.executable, "-m", "pa_tutorial.ground")\n',
}
THINGS = ("above", "reader", "stage", "asker", "starter")


def digests(root: Path, tree: dict[str, str]) -> dict[str, str]:
    for name, text in tree.items():
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text(text, encoding="utf-8")
    sources = Sources(root, {"a_stage": {"pa_tutorial.stage"}})
    return {thing: sources.digest([f"pa_tutorial.{thing}"]) for thing in THINGS}


@pytest.mark.parametrize(
    ("file", "text", "out_of_date"),
    [
        ("pa_tutorial/__init__.py", " ", {*THINGS}),
        ("pa_tutorial/ground.py", "", {"above", "starter"}),
        ("pa_tutorial/above.py", "from pa_tutorial import ground\n", {"above"}),
        ("pa_tutorial/numbers.json", "[1, 3]", {"reader"}),
        ("pa_tutorial/stage.py", "import torch \n", {"stage", "asker"}),
        ("pa_tutorial/another.py", "", set()),
        ("constraints.txt", "torch==2\nruff==1\n", {"stage", "asker"}),
        ("constraints.txt", "torch==1\nruff==2\n", set()),
    ],
)
def test_a_change_makes_too_little_or_too_much(
    tmp_path: Path, file: str, text: str, out_of_date: set
) -> None:
    before, after = digests(tmp_path, TREE), digests(tmp_path, {file: text})
    assert {thing for thing in THINGS if after[thing] != before[thing]} == out_of_date


def test_what_was_done_before_an_interrupt_is_lost(tmp_path: Path, monkeypatch) -> None:
    made = []

    def make(name: str) -> str:
        if made:
            raise KeyboardInterrupt
        return made.append(name) or ""

    names = ["first", "second"]
    kind = Kind(1, lambda: names, lambda name: f"digest of {name}", make)
    monkeypatch.setattr(refresh, "KINDS", {"things": kind})
    monkeypatch.setattr(refresh, "DIGESTS", tmp_path / "refreshed.json")
    assert refresh.out_of_date("things") == ["first", "second"]
    with pytest.raises(KeyboardInterrupt):
        refresh.refresh("things", names)
    assert refresh.out_of_date("things") == ["second"]
    names.remove("first")
    refresh.note("things", ["second"])
    assert refresh.recorded() == {"things second": "digest of second"}, "what is gone stays"
