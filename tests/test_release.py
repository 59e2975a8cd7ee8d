"""A release: what the wheel and the source package contain, and that the wheel works alone."""

import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parent.parent
BUILD = "from setuptools import build_meta as b; b.build_wheel({0!r}); b.build_sdist({0!r})"


def run(*arguments: str, cwd: Path, path: Path) -> str:
    """Runs Python, with what is installed but only the pa_tutorial in `path`."""
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        env=os.environ | {"PYTHONPATH": str(path)},
        capture_output=True,
        encoding="utf-8",
        errors="replace",
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def tracked() -> set[str]:
    if not (ROOT / ".git").exists():
        pytest.skip("this is no clone, so there is no list of its files")
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, encoding="utf-8")
    return {name for name in listed.stdout.splitlines() if (ROOT / name).exists()}


@pytest.fixture(scope="module")
def built(tracked: set[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and the source package, built from the tracked files."""
    copy, out = tmp_path_factory.mktemp("copy"), tmp_path_factory.mktemp("dist")
    for name in tracked:
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        (copy / name).write_bytes((ROOT / name).read_bytes())
    run("-c", BUILD.format(str(out)), cwd=copy, path=copy)
    return out


def test_the_wheel_has_the_package_and_the_source_package_everything(built, tracked) -> None:
    (wheel,), (source,) = built.glob("*.whl"), built.glob("*.tar.gz")
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert names == {name for name in tracked if name.startswith("pa_tutorial/")}
    with tarfile.open(source) as files:
        names = {member.name.partition("/")[2] for member in files if member.isfile()}
    assert names >= tracked - {".gitattributes", ".gitignore"}


def test_checks_and_the_example_of_the_simulator_work_from_the_wheel(built, tmp_path) -> None:
    site = tmp_path / "site"
    zipfile.ZipFile(*built.glob("*.whl")).extractall(site)
    where = "import pa_tutorial; print(pa_tutorial.__file__)"
    assert str(site) in run("-c", where, cwd=tmp_path, path=site)
    for stage in ("kv_cache", "cuda_v1"):
        run("-m", "pa_tutorial.checks", stage, "--short", cwd=tmp_path, path=site)
    readme = (ROOT / "pa_tutorial" / "simt" / "README.md").read_text(encoding="utf-8")
    example = re.search(r"```python\n(.*?)```", readme, re.DOTALL)[1]
    (tmp_path / "example.py").write_text(example, encoding="utf-8")
    run("example.py", cwd=tmp_path, path=site)


def test_the_version_is_the_same_everywhere() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == project["version"]
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert f"## {project['version']} ({citation['date-released']})" in changes
