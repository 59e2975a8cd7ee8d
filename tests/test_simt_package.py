"""simt is shipped twice: in numba-simt, which is nothing else, and in the walk."""

import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import distributions
from importlib.util import find_spec
from itertools import chain
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SIMT = ROOT / "simt"
BUILD = "import sys; from setuptools import build_meta as b; b.build_wheel(sys.argv[1])"
ALONE, WALK = (
    tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))
    for folder in (SIMT, ROOT)
)


def test_simt_is_the_one_of_this_checkout_and_comes_from_one_distribution() -> None:
    """`pip install ./simt` beside `pip install -e .` hides this checkout's, silently."""
    print(file := find_spec("simt").origin)
    names = {distribution.name for distribution in distributions()}
    remedy = "`pip uninstall numba-simt`, then `pip install -e .`"
    assert Path(file) == SIMT / "__init__.py", f"import simt takes {file}: {remedy}"
    assert "numba-simt" not in names, f"numba-simt is installed beside the walk: {remedy}"


def needed(project: dict) -> set[str]:
    """By a distribution and its extras."""
    return {*project["dependencies"], *chain(*project["optional-dependencies"].values())}


def test_both_need_the_same_versions() -> None:
    walk, alone = WALK["project"], ALONE["project"]
    jupyters = "ipython>=8.18,<10"  # comes to the walk with JupyterLab
    assert needed(alone) - needed(walk) == {"numba-simt[pictures]", jupyters}
    assert alone["entry-points"] == walk["entry-points"]


@pytest.mark.parametrize("name", ["LICENSE", "NOTICE"])
def test_both_have_the_same_licence(name: str) -> None:
    """A link would be a file of one line on Windows."""
    assert (SIMT / name).read_bytes() == (ROOT / name).read_bytes()


def test_the_wheel_of_numba_simt_has_code_and_licence_and_nothing_else(tmp_path: Path) -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("this is no clone, so there is no list of its files")
    subprocess.run(
        ["git", "checkout-index", "--all", f"--prefix={tmp_path}/"], cwd=ROOT, check=True
    )
    folder = tmp_path / "simt"
    paths = [path.relative_to(tmp_path).as_posix() for path in folder.rglob("*") if path.is_file()]
    code = {path for path in paths if path.endswith((".py", ".js", ".css"))}
    plug_in = {path for path in code if path.startswith("simt/pytest_simt/")}
    run = {"cwd": folder, "capture_output": True, "check": True}
    subprocess.run([sys.executable, "-c", BUILD, tmp_path], **run)
    names = {*zipfile.ZipFile(*tmp_path.glob("*.whl")).namelist()}
    about = {name for name in names if ".dist-info/" in name}
    assert names - about == code - plug_in | {path.removeprefix("simt/") for path in plug_in}
    assert {name.rpartition("/")[2] for name in about} >= {"LICENSE", "NOTICE", "METADATA"}
