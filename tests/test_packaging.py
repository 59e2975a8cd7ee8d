"""pyproject.toml, constraints.txt, environment.yml, and Makefile say the same thing."""

import re
import subprocess
import sys
import tomllib
from importlib.metadata import distributions, metadata, packages_distributions
from pathlib import Path

import absent
import nbformat
import pytest
import yaml
from packages import chosen
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from pa_tutorial.viz.walk import PLAN
from pa_tutorial.walk.ladder import STAGES

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]


def requirements() -> dict[str, Requirement]:
    """What we ask for directly, extras included, without ourselves."""
    texts = PROJECT["dependencies"] + [text for extra in EXTRAS.values() for text in extra]
    found = {canonicalize_name(Requirement(text).name): Requirement(text) for text in texts}
    found.pop("pa-tutorial")
    return found


def constraints() -> dict[str, Requirement]:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [Requirement(line) for line in lines if line and not line.startswith("#")]
    return {canonicalize_name(pin.name): pin for pin in pins}


READER = ".[lab,triton]"  # what a reader installs
LEFT_TO_TORCH = "triton"  # PyPI's torch for Linux has a version of its own


@pytest.mark.parametrize("name", sorted({*requirements()} - {LEFT_TO_TORCH}))
def test_each_requirement_is_a_range_that_holds_its_pin(name: str) -> None:
    (pin,) = constraints()[name].specifier
    assert pin.operator == "=="
    ranges = requirements()[name].specifier
    assert any(part.operator == ">=" for part in ranges), "a range has a lower end"
    assert ranges.contains(pin.version)


def test_torch_is_pinned_and_its_own_pins_are_left_alone() -> None:
    pins = constraints()
    assert str(pins["torch"].specifier) == "==2.13.0"
    assert not [name for name in pins if re.match(r"triton|nvidia-|cuda-", name)]


def test_triton_has_no_pin_and_is_asked_for_only_where_it_has_wheels() -> None:
    triton = requirements()[LEFT_TO_TORCH]
    assert LEFT_TO_TORCH not in constraints()
    for system, wanted in {"linux": True, "win32": False, "darwin": False}.items():
        assert triton.marker.evaluate({"sys_platform": system}) == wanted


def test_numba_cuda_is_asked_for_only_where_it_has_wheels() -> None:
    numba_cuda = requirements()["numba-cuda"]
    assert numba_cuda.extras == {"cu13"}
    systems = {"linux": True, "win32": True, "darwin": False}
    for system, wanted in systems.items():
        assert numba_cuda.marker.evaluate({"sys_platform": system}) == wanted


def test_every_pin_can_be_installed_under_every_python() -> None:
    """Else pip looks for minutes, and says "resolution-too-deep": Debian 12 has Python 3.11.2."""
    pythons = [f"3.{minor}.{micro}" for minor in range(11, 16) for micro in range(20)]
    admitted = [*SpecifierSet(PROJECT["requires-python"]).filter(pythons)]
    assert admitted[0] == "3.11.0"
    assert {python.rpartition(".")[0] for python in admitted} == {"3.11", "3.12", "3.13", "3.14"}
    for name in constraints().keys() & {canonicalize_name(d.name) for d in distributions()}:
        wanted = SpecifierSet(metadata(name)["Requires-Python"] or "")
        refused = [python for python in admitted if not wanted.contains(python)]
        assert not refused, f"{name} needs Python {wanted}"


def test_a_reader_installs_no_tools_of_tests_and_lecturers() -> None:
    packages = chosen(f"pa-tutorial{READER[1:]}")
    assert {"jupyterlab", "pytest"} <= packages
    assert not packages & {"nbgrader", "playwright", "hypothesis", "ruff"}
    assert f"'{READER}'" in make("--dry-run", "--always-make", "lab").stdout


def test_a_reader_installs_what_the_notebooks_import() -> None:
    packages = chosen(f"pa-tutorial{READER[1:]}")
    code = [
        cell.source
        for path in (ROOT / "notebooks").glob("*.ipynb")
        for cell in nbformat.read(path, as_version=4).cells
        if cell.cell_type == "code"
    ]
    imported = {*re.findall(r"^ *(?:import|from(?=.+ import )) (\w+)", "\n".join(code), re.M)}
    homes = packages_distributions()
    for name in imported - sys.stdlib_module_names:
        assert packages & {*map(canonicalize_name, homes[name])}, f"a notebook imports {name}"


def test_environment_is_thin_and_agrees() -> None:
    environment = yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))
    assert environment["name"] == "pa-tutorial"
    *conda, pip = environment["dependencies"]
    assert pip == {"pip": ["-c constraints.txt", f"-e {READER}"]}
    python, pip_itself = conda
    conda_specs = dict(spec.split(" ") for spec in (python, pip_itself))
    assert set(conda_specs) == {"python", "pip"}
    assert SpecifierSet(conda_specs["python"]) == SpecifierSet(PROJECT["requires-python"])
    (pip_pin,) = constraints()["pip"].specifier
    assert SpecifierSet(conda_specs["pip"]).contains(pip_pin.version)


def make(*arguments: str, **environment: str) -> subprocess.CompletedProcess:
    absent.require("POSIX")
    return subprocess.run(
        ["make", "--no-print-directory", *arguments],
        cwd=ROOT,
        capture_output=True,
        encoding="utf-8",
        timeout=60,
    )


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
    python.write_text(
        f'#!/bin/sh\ncase "$*" in *{works_until}*) exit 1;; --version) echo Python 3.9.1;; esac\n',
        encoding="utf-8",
    )
    python.chmod(0o755)
    done = make("lab", f"PYTHON={python}", f"VENV={tmp_path / 'venv'}")
    said = [line for line in done.stdout.splitlines() if line]
    assert done.returncode != 0
    assert len(said) == 1
    assert said[0].startswith(sentence)
    assert not (tmp_path / "venv").exists()


def test_map_and_ladder_agree() -> None:
    plan = {name: before for name, _, _, before, _ in PLAN}
    assert list(STAGES) == list(plan)
    assert all(plan[name] == stage.checked_against for name, stage in STAGES.items())


def test_every_file_of_the_package_is_installed_with_it() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    patterns = project["tool"]["setuptools"]["package-data"]["pa_tutorial"]
    package = ROOT / "pa_tutorial"
    installed = {file for pattern in ("**/*.py", *patterns) for file in package.glob(pattern)}
    kept = "__pycache__"  # what Python and Numba have compiled
    files = {f for f in package.rglob("*") if f.is_file() and f.parent.name != kept}
    assert files == installed
    assert package / "kernels" / "paged_attention.cu" in installed
