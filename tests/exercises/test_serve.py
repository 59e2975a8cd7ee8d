"""What a reader has written serves, once it passes its check; what doesn't is refused."""

from copy import deepcopy
from pathlib import Path

import nbformat
import pytest

from pa_tutorial.exercises.blank import all_blanks
from pa_tutorial.exercises.my_kernel import save
from pa_tutorial.exercises.my_pages import save_pages
from pa_tutorial.exercises.our_kernels import BACKENDS
from pa_tutorial.exercises.reader_files import made
from pa_tutorial.exercises.saved_files import PLACE
from pa_tutorial.exercises.serve import main, my_checked_kernel, my_checked_pages
from tests.exercises.blank_cells import function_of
from tests.run_notebooks import NOTEBOOKS, outputs, run
from tests.same_output import require_same

PROMPT = ("Python is", "--max-tokens", "12", "--no-progress")
# A release that gives a block back even if other sequences have it.
RELEASE = (
    "my_pages.py",
    "if pool.ref_counts[block] == 0:\n        pool.free_blocks.a",
    "if True:\n        pool.free_blocks.a",
)
SCALE = "my_kernel/v1.py", "qk = scale * qk_dot", "qk = qk_dot"
TEXT = "> Python is\n   also value    [length]\n"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(PLACE, str(tmp_path / "my_kernel"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def save_answers(every: int = 1) -> None:
    """As a reader who has filled in every blank, or every second one."""
    found: dict[str, list] = {file: [] for file in ("pages", "naive", "v1", "v1_vector", "v2")}
    for blank in [*all_blanks().values()][::every]:
        if blank.file in found:
            found[blank.file].append(function_of(blank, blank.source))
    save_pages(*found.pop("pages"))
    save(BACKENDS["naive"].with_functions(naive=found.pop("naive")))
    save(BACKENDS["v2"].with_functions(**found))


def change(path: str, old: str, new: str) -> None:
    text = Path(path).read_text(encoding="utf-8")
    assert text.count(old) == 1
    Path(path).write_text(text.replace(old, new), encoding="utf-8")


def test_the_command_serves_with_ours_where_nothing_is_saved(capsys: pytest.CaptureFixture) -> None:
    assert main([*PROMPT]) == 0
    printed = capsys.readouterr().out
    assert "There is no my_pages.py: these pages are ours." in printed
    assert "There is no v1_vector in my_kernel: this kernel is ours." in printed
    assert printed.endswith(TEXT)


@pytest.mark.parametrize("every", [1, 2])
def test_the_command_serves_with_both_files(every: int, capsys: pytest.CaptureFixture) -> None:
    save_answers(every)
    assert main(["--pages", "my_pages.py", "--kernel", "my_kernel", *PROMPT]) == 0
    printed = capsys.readouterr().out
    assert "my_pages.py: 29 of 29" in printed or every == 2
    assert "13 of 13 functions of v1_vector are yours." in printed or every == 2
    assert "my_pages.py: random operations found nothing wrong." in printed
    assert printed.endswith(TEXT)


def test_wrong_pages_are_refused_with_the_verdict(capsys: pytest.CaptureFixture) -> None:
    save_answers()
    change(*RELEASE)
    assert main([*PROMPT]) == 1
    printed = capsys.readouterr().out
    assert "> Python is" not in printed
    assert printed.endswith("\nmy_pages.py is refused\n")
    assert my_checked_pages() is made("pages").Pages
    assert capsys.readouterr().out.endswith("my_pages.py is refused; ours serves in its place.\n")


def test_a_wrong_kernel_is_refused_with_the_verdict(capsys: pytest.CaptureFixture) -> None:
    save_answers()
    change(*SCALE)
    assert main([*PROMPT]) == 1
    printed = capsys.readouterr().out
    assert "my_pages.py: random operations found nothing wrong." in printed
    assert "> Python is" not in printed
    assert "cuda_v1_vector: not yet; 0 of" in printed
    assert printed.endswith("\nmy_kernel is refused\n")
    assert my_checked_kernel("v1_vector") is BACKENDS["v1_vector"]
    assert capsys.readouterr().out.endswith(
        "Your v1_vector is refused; ours serves in its place.\n"
    )


def test_a_notebook_takes_what_passes() -> None:
    save_answers(2)
    assert my_checked_pages() is not made("pages").Pages
    assert my_checked_kernel("v1_vector") != BACKENDS["v1_vector"]


def test_only_the_kernels_of_the_walk_serve(capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit):
        main(["--backend", "cpu", "Python is"])
    assert "--backend is cpu; it must be one of cuda_naive, " in capsys.readouterr().err


KERNELS = "naive", "v1", "v2"  # besides v1_vector
SAYS_WHOSE = "15-files", "15-kernels", "15-microscope"


def served(home: Path) -> dict[str, str]:
    """What these cells of notebook 15 print, run beside the reader's files, once the others are
    seen to show what is committed: the texts, and whose each block is."""
    committed = nbformat.read(NOTEBOOKS / "15_it_serves.ipynb", as_version=4)
    fresh = run(deepcopy(committed), home, str(home / "my_kernel"))
    for old, new in zip(committed.cells, fresh.cells, strict=True):
        if old.id not in SAYS_WHOSE:
            require_same(outputs(new, with_png=False), outputs(old, with_png=False), old.source)
    return {cell.id: str(outputs(cell, with_png=False)) for cell in fresh.cells}


STATES = {  # what is saved, what is changed in it, and what the notebook says of it
    "half": (2, [], ["14 of 29 functions are yours", "7 of 13 functions of v1_vector are yours"]),
    "all": (1, [], ["29 of 29 functions are yours", "13 of 13 functions of v1_vector are yours"]),
    "wrong": (
        1,
        [RELEASE, SCALE],
        [
            "a reference was lost",
            "my_pages.py is refused; ours serves in its place.",
            "first wrong: qk",
            "Your v1_vector is refused; ours serves in its place.",
        ],
    ),
}


@pytest.mark.rest("the commands above; test_notebooks.py runs 15 with nothing saved")
@pytest.mark.parametrize("state", STATES)
def test_notebook_15_serves_whatever_is_saved(state: str, home: Path) -> None:
    every, changes, says = STATES[state]
    save_answers(every)
    for file, old, new in changes:
        change(file, old, new)
    printed = served(home)
    for words in says:
        assert words in printed["15-files"]
    assert printed["15-kernels"].count(": True") == 3
    refused = [name for name in KERNELS if f"Your {name} is refused" in printed["15-kernels"]]
    assert refused == (["v1", "v2"] if state == "wrong" else [])  # naive has its own scale


def test_a_path_that_leads_nowhere_is_an_error(capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit):
        main(["--pages", "my_pgaes.py", *PROMPT])
    assert "there is no my_pgaes.py" in capsys.readouterr().err
    with pytest.raises(
        ValueError, match="kernel is 'v3'; it must be one of naive, v1, v1_vector, v2"
    ):
        my_checked_kernel("v3")
