"""A release: what the wheels and the source package contain.

`python -m tests.packages_alone` installs the wheels in empty environments and tries them.
"""

import os
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parent.parent
KERNELS = "etc/ipython/ipython_kernel_config.py"  # for the kernels of an environment
BUILD = "from setuptools import build_meta as b; b.build_wheel('dist'); b.build_sdist('dist')"


def run(*arguments: str, cwd: Path, path: Path) -> None:
    """Runs Python with the pa_tutorial that is in `path`."""
    environment = os.environ | {"PYTHONPATH": str(path)}
    subprocess.run([sys.executable, *arguments], cwd=cwd, env=environment, check=True)


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What git tracks, and nothing else."""
    if not (ROOT / ".git").exists():
        pytest.skip("this is no clone, so there is no list of its files")
    copy = tmp_path_factory.mktemp("copy")
    git = ["git", "checkout-index", "--all", f"--prefix={copy}/"]
    subprocess.run(git, cwd=ROOT, check=True)
    return copy


def tracked() -> set[str]:
    git = ["git", "ls-files"]
    listed = subprocess.run(git, cwd=ROOT, capture_output=True, encoding="utf-8", check=True)
    return {*listed.stdout.splitlines()}


def code_of_the_simulator() -> set[str]:
    """Its files, by their names in a wheel."""
    names = [n for n in tracked() if n.startswith("simt/") and n.endswith((".py", ".js", ".css"))]
    return {name.removeprefix("simt/" if "/pytest_simt/" in name else "") for name in names}


def names_in_wheel(folder: Path) -> set[str]:
    return {*zipfile.ZipFile(*folder.glob("*.whl")).namelist()}


def test_the_wheel_of_the_simulator_has_its_code_and_a_licence_and_nothing_else(copy) -> None:
    run("-c", BUILD, cwd=copy / "simt", path=copy)
    names = names_in_wheel(copy / "simt" / "dist")
    about = {name for name in names if ".dist-info/" in name}
    assert names - about == code_of_the_simulator()
    assert {name.rpartition("/")[2] for name in about} >= {"LICENSE", "NOTICE", "METADATA"}
    for name in ("LICENSE", "NOTICE"):  # a link would be a file of one line on Windows
        assert (ROOT / "simt" / name).read_bytes() == (ROOT / name).read_bytes()


@pytest.mark.rest
def test_the_wheel_has_both_packages_and_the_source_package_everything(copy) -> None:
    run("-c", BUILD, cwd=copy, path=copy)
    built = copy / "dist"
    names, code = names_in_wheel(built), code_of_the_simulator()
    data = {name for name in names if ".data/data/" in name}
    assert [name.partition(".data/data/")[2] for name in data] == [KERNELS]
    assert {name for name in names if name.startswith(("simt/", "pytest_simt/"))} == code
    others = {name for name in names - code - data if ".dist-info/" not in name}
    assert {name.partition("/")[0] for name in others} == {"pa_tutorial"}
    assert others >= {name for name in tracked() if name.startswith("pa_tutorial/")}
    with tarfile.open(*built.glob("*.tar.gz")) as files:
        names = {member.name.partition("/")[2] for member in files if member.isfile()}
    assert names >= tracked() - {".gitattributes", ".gitignore"}


@pytest.mark.rest
def test_an_editable_installation_configures_kernels_too(copy) -> None:
    """It is what a reader has; without setup.py, setuptools leaves the file out."""
    program = "from setuptools import build_meta as b; b.build_editable('editable')"
    run("-c", program, cwd=copy, path=copy)
    assert any(name.endswith(KERNELS) for name in names_in_wheel(copy / "editable"))


def test_the_version_is_the_same_everywhere() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == project["version"]
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert f"## {project['version']} ({citation['date-released']})" in changes
