"""pyproject.toml, constraints.txt, environment.yml, and Makefile say the same thing."""

import re
import subprocess
import sys
import tomllib
from importlib.metadata import distributions, metadata, packages_distributions
from pathlib import Path

import nbformat
import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from pa_tutorial.viz.walk import PLAN
from pa_tutorial.walk.ladder import STAGES
from tests import absent
from tests.packages import chosen

ROOT = Path(__file__).parent.parent
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT = PYPROJECT["project"]
READER = ".[lab,triton]"  # what a reader installs


def by_name(lines: list[str]) -> dict[str, Requirement]:
    return {canonicalize_name(one.name): one for one in map(Requirement, lines)}


EXTRAS = [text for extra in PROJECT["optional-dependencies"].values() for text in extra]
REQUIRED = by_name([*PROJECT["dependencies"], *EXTRAS])  # what we ask for directly
LINES = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
PINS = by_name([line for line in LINES if line and not line.startswith("#")])


@pytest.mark.parametrize("name", sorted(REQUIRED.keys() - {"triton", "pa-tutorial"}))
def test_each_requirement_is_a_range_that_holds_its_pin(name: str) -> None:
    (pin,) = PINS[name].specifier
    ranges = REQUIRED[name].specifier
    assert pin.operator == "=="
    assert any(part.operator == ">=" for part in ranges), "a range has a lower end"
    assert ranges.contains(pin.version)


def test_what_torch_pins_is_left_to_it_and_wheels_are_asked_for_where_they_are() -> None:
    assert str(PINS["torch"].specifier) == "==2.13.0"
    assert not [name for name in PINS if re.match(r"triton|nvidia-|cuda-", name)]
    assert REQUIRED["numba-cuda"].extras == {"cu13"}
    for name, there in {"triton": {"linux"}, "numba-cuda": {"linux", "win32"}}.items():
        marker = REQUIRED[name].marker
        systems = ("linux", "win32", "darwin")
        assert {one for one in systems if marker.evaluate({"sys_platform": one})} == there


def test_every_pin_can_be_installed_under_every_python() -> None:
    """Else pip looks for minutes, and says "resolution-too-deep": Debian 12 has Python 3.11.2."""
    pythons = [f"3.{minor}.{micro}" for minor in range(11, 16) for micro in range(20)]
    admitted = [*SpecifierSet(PROJECT["requires-python"]).filter(pythons)]
    assert admitted[0] == "3.11.0"
    assert {python.rpartition(".")[0] for python in admitted} == {"3.11", "3.12", "3.13", "3.14"}
    for name in PINS.keys() & {canonicalize_name(d.name) for d in distributions()}:
        wanted = SpecifierSet(metadata(name)["Requires-Python"] or "")
        refused = [python for python in admitted if not wanted.contains(python)]
        assert not refused, f"{name} needs Python {wanted}"


def test_a_reader_installs_what_the_notebooks_import_and_no_tools_of_tests() -> None:
    packages = chosen(f"pa-tutorial{READER[1:]}")
    assert {"jupyterlab", "pytest"} <= packages
    assert not packages & {"playwright", "hypothesis", "ruff"}
    assert f"'{READER}'" in make("--dry-run", "--always-make", "lab").stdout
    notebooks = [nbformat.read(p, as_version=4) for p in (ROOT / "notebooks").glob("*.ipynb")]
    code = "\n".join(c.source for n in notebooks for c in n.cells if c.cell_type == "code")
    homes = packages_distributions()
    imported = {*re.findall(r"^ *(?:import|from(?=.+ import )) (\w+)", code, re.M)}
    for name in imported - sys.stdlib_module_names:
        assert packages & {*map(canonicalize_name, homes[name])}, f"a notebook imports {name}"


def test_environment_is_thin_and_agrees() -> None:
    environment = yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))
    assert environment["name"] == "pa-tutorial"
    *conda, pip = environment["dependencies"]
    assert pip == {"pip": ["-c constraints.txt", f"-e {READER}"]}
    specs = dict(spec.split(" ") for spec in conda)
    assert set(specs) == {"python", "pip"}
    assert SpecifierSet(specs["python"]) == SpecifierSet(PROJECT["requires-python"])
    (pip_pin,) = PINS["pip"].specifier
    assert SpecifierSet(specs["pip"]).contains(pip_pin.version)


def make(*arguments: str) -> subprocess.CompletedProcess:
    absent.require("POSIX")
    command = ["make", "--no-print-directory", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, encoding="utf-8", timeout=60)


@pytest.mark.parametrize(
    ("works_until", "sentence"),
    [
        ("version_info", "This needs Python 3.11 to 3.14"),
        ("ensurepip", "This needs Python's venv module"),
    ],
)
def test_make_says_in_one_sentence_what_is_missing(tmp_path, works_until, sentence) -> None:
    """A python that fails at one question; make must stop there and say why."""
    python = tmp_path / "python3"
    asked = f'case "$*" in *{works_until}*) exit 1;; --version) echo Python 3.9.1;; esac'
    python.write_text(f"#!/bin/sh\n{asked}\n", encoding="utf-8")
    python.chmod(0o755)
    done = make("lab", f"PYTHON={python}", f"VENV={tmp_path / 'venv'}")
    assert done.returncode != 0
    (said,) = [line for line in done.stdout.splitlines() if line]
    assert said.startswith(sentence)
    assert not (tmp_path / "venv").exists()


def test_map_and_ladder_agree() -> None:
    assert {name: before for name, _, _, before, _ in PLAN} == {
        name: stage.checked_against for name, stage in STAGES.items()
    }


def test_every_file_of_the_package_is_installed_with_it() -> None:
    patterns = PYPROJECT["tool"]["setuptools"]["package-data"]["pa_tutorial"]
    package = ROOT / "pa_tutorial"
    installed = {file for pattern in ("**/*.py", *patterns) for file in package.glob(pattern)}
    kept = "__pycache__"  # what Python and Numba have compiled
    files = {f for f in package.rglob("*") if f.is_file() and f.parent.name != kept}
    assert files == installed
