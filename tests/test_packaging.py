"""What pip is asked for can be installed: ranges, pins and the conda environment agree.

simt is shipped twice: in numba-simt, which has nothing else, and in the walk.
"""

import re
import sys
import tomllib
from importlib.metadata import distributions, metadata, packages_distributions, requires
from importlib.util import find_spec
from itertools import chain
from pathlib import Path

import nbformat
import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from tests.packages import chosen

ROOT = Path(__file__).parent.parent
SIMT = ROOT / "simt"
PROJECT, ALONE = (
    tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for folder in (ROOT, SIMT)
)
READER = "[lab,triton]"  # the extras that a reader installs


def by_name(lines: list[str]) -> dict[str, Requirement]:
    requirements = [Requirement(line) for line in lines if line and not line.startswith("#")]
    return {canonicalize_name(one.name): one for one in requirements}


def needed(project: dict) -> list[str]:
    """By a distribution and its extras."""
    return [*project["dependencies"], *chain(*project["optional-dependencies"].values())]


REQUIRED = by_name(needed(PROJECT))
PINS = by_name((ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines())


def test_each_requirement_is_a_range_that_holds_its_pin() -> None:
    for name in REQUIRED.keys() - {"triton", "pa-tutorial"}:
        (pin,) = PINS[name].specifier
        assert ">=" in str(REQUIRED[name].specifier), f"{name}: a range has a lower end"
        assert pin.version in REQUIRED[name].specifier, name


# A pin -> what it needs, although its own requirements don't say so.
UNDECLARED = {"numba-cuda==0.30.4": "numpy<2.5"}  # it calls a function that NumPy 2.5 removes


def test_no_range_admits_what_a_pinned_package_is_known_to_break_on() -> None:
    pinned = {str(pin) for pin in PINS.values()}
    assert {*UNDECLARED} <= pinned, "a new pin: does it still need what UNDECLARED says?"
    needed = [*UNDECLARED.values()]
    for package in PINS.keys() & {canonicalize_name(d.name) for d in distributions()}:
        needed += requires(package) or ()
    for one in map(Requirement, needed):
        name, is_ours = canonicalize_name(one.name), not one.marker or one.marker.evaluate()
        if name in REQUIRED and is_ours:
            refused = [s.version for s in one.specifier if s.operator in ("<", "!=")]
            assert not [*REQUIRED[name].specifier.filter(refused)], f"{name}: {one} is needed"


def test_what_torch_pins_itself_has_no_pin_here() -> None:
    assert not [name for name in PINS if re.match(r"triton|nvidia-|cuda-", name)]


def test_every_pin_can_be_installed_under_every_python() -> None:
    """Else pip searches for minutes: Debian 12 has Python 3.11.2."""
    pythons = [f"3.{minor}.{micro}" for minor in range(11, 16) for micro in range(20)]
    admitted = [*SpecifierSet(PROJECT["requires-python"]).filter(pythons)]
    for name in PINS.keys() & {canonicalize_name(d.name) for d in distributions()}:
        wanted = SpecifierSet(metadata(name)["Requires-Python"] or "")
        assert [*wanted.filter(admitted)] == admitted, f"{name} needs Python {wanted}"


def test_a_reader_installs_what_the_notebooks_import() -> None:
    packages = chosen(f"pa-tutorial{READER}")
    notebooks = [nbformat.read(p, as_version=4) for p in (ROOT / "notebooks").glob("*.ipynb")]
    code = "\n".join(c.source for n in notebooks for c in n.cells if c.cell_type == "code")
    homes = packages_distributions()
    imported = {*re.findall(r"^ *(?:import|from(?=.+ import )) (\w+)", code, re.M)}
    kernel_files = {name for name in imported if name.startswith("kernel_")}  # notebooks write them
    for name in imported - sys.stdlib_module_names - kernel_files:
        assert packages & {*map(canonicalize_name, homes[name])}, f"a notebook imports {name}"


def test_the_conda_environment_installs_what_a_reader_needs() -> None:
    environment = yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))
    python, _, pip = environment["dependencies"]
    assert pip == {"pip": ["-c constraints.txt", f"-e .{READER}"]}
    assert SpecifierSet(python.removeprefix("python ")) == SpecifierSet(PROJECT["requires-python"])


def test_simt_is_the_one_of_this_checkout_and_comes_from_one_distribution() -> None:
    """`pip install ./simt` beside `pip install -e .` hides this checkout's, silently."""
    print(file := find_spec("simt").origin)
    remedy = "`pip uninstall numba-simt`, then `pip install -e .`"
    assert Path(file) == SIMT / "__init__.py", f"import simt takes {file}: {remedy}"
    names = {distribution.name for distribution in distributions()}
    assert "numba-simt" not in names, f"numba-simt is installed beside the walk: {remedy}"


def test_the_simulator_alone_needs_the_versions_that_the_walk_needs() -> None:
    jupyters = "ipython>=8.18,<10"  # comes to the walk with JupyterLab
    assert {*needed(ALONE)} - {*needed(PROJECT)} == {"numba-simt[pictures]", jupyters}


def test_the_simulators_tests_need_nothing_of_the_walk() -> None:
    """`python -m tests.packages_alone` runs them where only the simulator is."""
    for file in (ROOT / "tests" / "simt").rglob("*.py"):
        foreign = r"pa_tutorial|^ *(?:from|import) (?:torch|tests(?!\.simt)).*"
        assert not re.findall(foreign, file.read_text(encoding="utf-8"), re.M), file


@pytest.mark.parametrize("name", ["LICENSE", "NOTICE"])
def test_the_simulator_alone_has_the_licence_of_the_walk(name: str) -> None:
    """A link would be a file of one line on Windows."""
    assert (SIMT / name).read_bytes() == (ROOT / name).read_bytes()
