"""A release: what the wheel and the source package hold, and what works from the wheel alone."""

import os
import re
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest
import yaml

from tests.packages import chosen, link_packages

ROOT = Path(__file__).parent.parent
pytestmark = pytest.mark.needs("POSIX")  # links, and the folders of its environments
BUILD = "from setuptools import build_meta as b; b.build_wheel({0!r}); b.build_sdist({0!r})"


def run(python: str, *arguments: str, cwd: Path, code: int = 0) -> str:
    done = subprocess.run(
        [python, *arguments],
        cwd=cwd,
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        capture_output=True,
        encoding="utf-8",
        errors="replace",
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def tracked() -> set[str]:
    if not (ROOT / ".git").exists():
        pytest.skip("this is no clone: nobody says what belongs to it")
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, encoding="utf-8")
    return {name for name in listed.stdout.splitlines() if (ROOT / name).exists()}


@pytest.fixture(scope="module")
def built(tracked: set[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and the source package, made of what is tracked."""
    copy, out = tmp_path_factory.mktemp("copy"), tmp_path_factory.mktemp("dist")
    for name in tracked:
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        (copy / name).write_bytes((ROOT / name).read_bytes())
    run(sys.executable, "-c", BUILD.format(str(out)), cwd=copy)
    return out


def test_the_wheel_holds_the_package_and_nothing_else(built: Path, tracked: set[str]) -> None:
    (wheel,) = built.glob("*.whl")
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert names == {name for name in tracked if name.startswith("pa_tutorial/")}


def test_the_source_package_holds_what_is_tracked(built: Path, tracked: set[str]) -> None:
    (source,) = built.glob("*.tar.gz")
    with tarfile.open(source) as files:
        names = {member.name.partition("/")[2] for member in files if member.isfile()}
    made = {name for name in names if ".egg-info/" in name} | {"PKG-INFO", "setup.cfg"}
    assert names - made == tracked - {".gitattributes", ".gitignore"}


@pytest.fixture(scope="module")
def python(built: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The Python of an environment with the wheel and what it needs."""
    folder = tmp_path_factory.mktemp("empty")
    venv.create(folder, symlinks=True)
    (site,), (wheel,) = folder.glob("lib/python*/site-packages"), built.glob("*.whl")
    link_packages(chosen("pa-tutorial") - {"pa-tutorial"}, site)
    zipfile.ZipFile(wheel).extractall(site)
    return str(folder / "bin" / "python")


def test_what_the_readme_promises_works_from_the_wheel(python: str, tmp_path: Path) -> None:
    said = run(python, "-m", "pa_tutorial.checks", "kv_cache", cwd=tmp_path)
    assert "kv_cache: 52 of 52 cases" in said
    assert "13 of 13" in run(python, "-m", "pa_tutorial.checks", "cuda_v1", "--short", cwd=tmp_path)
    make = ("-m", "pa_tutorial.coursework", "make", "03_blocks_and_block_tables", "sliding_window")
    run(python, *make, "--out", "course", cwd=tmp_path)
    assert {path.name for path in (tmp_path / "course").iterdir()} >= {"student", "plain"}
    readme = (ROOT / "pa_tutorial" / "simt" / "README.md").read_text(encoding="utf-8")
    example = re.search(r"```python\n(.*?)```", readme, re.DOTALL)[1]
    (tmp_path / "example.py").write_text(example, encoding="utf-8")
    run(python, "example.py", cwd=tmp_path)
    where = "import pa_tutorial; print(pa_tutorial.__file__)"
    assert str(ROOT) not in run(python, "-c", where, cwd=tmp_path)


def test_what_needs_the_notebooks_says_where_they_are(python: str, tmp_path: Path) -> None:
    said = run(python, "-m", "pa_tutorial.viz", cwd=tmp_path, code=2)
    assert "source package" in said
    assert "Traceback" not in said


def test_the_version_is_one() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"][
        "version"
    ]
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == version
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert f"## {version} ({citation['date-released']})" in changes
