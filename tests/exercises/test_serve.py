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
from tests.exercises.blank_cells import changed
from tests.run_notebooks import NOTEBOOKS, outputs, run
from tests.same_output import require_same

PROMPT = ("Python is", "--max-tokens", "12", "--no-progress")
TEXT = "> Python is\n   also value    [length]\n"
# A release that gives a block back even if other sequences have it.
BAD_RELEASE = (
    "if pool.ref_counts[block] == 0:\n        pool.free_blocks.a",
    "if True:\n        pool.free_blocks.a",
)
NO_SCALE = "qk = scale * qk_dot", "qk = qk_dot"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(PLACE, str(tmp_path / "my_kernel"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def save_half() -> None:
    """As a reader who has filled in every second blank."""
    found: dict[str, list] = {file: [] for file in ("pages", "naive", "v1", "v1_vector", "v2")}
    for blank in [*all_blanks().values()][::2]:
        if blank.file in found:
            found[blank.file].append(changed(blank.name))
    save_pages(*found.pop("pages"))
    save(BACKENDS["naive"].with_functions(naive=found.pop("naive")))
    save(BACKENDS["v2"].with_functions(**found))


def save_wrong_kernel() -> None:
    save(BACKENDS["v1"].with_functions(v1=[changed("fill_logits", NO_SCALE)]))


def test_the_command_serves_with_ours_where_nothing_is_saved(capsys: pytest.CaptureFixture) -> None:
    assert main([*PROMPT]) == 0
    printed = capsys.readouterr().out
    assert "no my_pages.py: these pages are ours." in printed
    assert "no v1_vector in my_kernel: this kernel is ours." in printed
    assert printed.endswith(TEXT)


def test_what_is_saved_and_passes_serves(capsys: pytest.CaptureFixture) -> None:
    save_half()
    assert main(["--pages", "my_pages.py", "--kernel", "my_kernel", *PROMPT]) == 0
    printed = capsys.readouterr().out
    assert "my_pages.py: 14 of 29 functions are yours" in printed
    assert "7 of 13 functions of v1_vector are yours." in printed
    assert "my_pages.py: random operations found nothing wrong." in printed
    assert printed.endswith(TEXT)
    assert my_checked_kernel("naive") != BACKENDS["naive"]


def test_only_what_there_is_serves(capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit):
        main(["--pages", "my_pgaes.py", *PROMPT])
    assert "no my_pgaes.py" in capsys.readouterr().err
    with pytest.raises(ValueError, match="kernel is 'v3'"):
        my_checked_kernel("v3")


def test_wrong_pages_are_refused_with_the_verdict(capsys: pytest.CaptureFixture) -> None:
    save_pages(changed("release", BAD_RELEASE))
    assert main([*PROMPT]) == 1
    assert capsys.readouterr().out.endswith("\nmy_pages.py is refused\n")
    assert my_checked_pages() is made("pages").Pages
    assert capsys.readouterr().out.endswith("my_pages.py is refused; ours serves in its place.\n")


def test_a_wrong_kernel_is_refused_with_the_verdict(capsys: pytest.CaptureFixture) -> None:
    save_wrong_kernel()
    assert main([*PROMPT]) == 1
    printed = capsys.readouterr().out
    assert "cuda_v1_vector: not yet; 0 of" in printed
    assert printed.endswith("\nmy_kernel is refused\n")
    assert my_checked_kernel("v1") is BACKENDS["v1"]
    assert capsys.readouterr().out.endswith("Your v1 is refused; ours serves in its place.\n")


SAYS_WHOSE = "15-files", "15-kernels", "15-microscope"  # whose each block is


@pytest.mark.rest("the commands above; test_notebooks.py runs 15 with nothing saved")
def test_notebook_15_serves_whatever_is_saved(home: Path) -> None:
    save_half()
    save_pages(changed("release", BAD_RELEASE))
    save_wrong_kernel()
    committed = nbformat.read(NOTEBOOKS / "15_it_serves.ipynb", as_version=4)
    fresh = run(deepcopy(committed), home, str(home / "my_kernel"))
    printed = {}
    for old, new in zip(committed.cells, fresh.cells, strict=True):
        printed[new.id] = str(outputs(new, with_png=False))
        if old.id not in SAYS_WHOSE:
            require_same(outputs(new, with_png=False), outputs(old, with_png=False), old.source)
    for words in ("a reference was lost", "my_pages.py is refused; ours serves", "first wrong: qk"):
        assert words in printed["15-files"]
    assert "Your v1_vector is refused; ours serves in its place." in printed["15-files"]
    assert printed["15-kernels"].count(": True") == 3
    assert printed["15-kernels"].count("is refused") == 2  # v1 and v2; naive has its own scale
