"""Codespaces, Binder and Colab: what their files say, and that their commands lead to notebook 00.

The commands run in a clone, each time in an environment that has nothing else. None of the services
is asked, and torch comes from pip's own index where PyTorch's can't be reached.
"""

import json
import os
import re
import subprocess
import sys
import venv
from functools import cache
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import pytest

ROOT = Path(__file__).parent.parent
CONTAINER = json.loads((ROOT / ".devcontainer/devcontainer.json").read_text(encoding="utf-8"))
POST_BUILD, README, COLAB, PINS = (
    (ROOT / name).read_text(encoding="utf-8")
    for name in (".binder/postBuild", "README.md", "notebooks/COLAB.md", "constraints.txt")
)
TORCH_INDEX = "https://download.pytorch.org/whl/cpu"
ADDRESS = "https://github.com/OWNER/REPO"  # where it says so until the repository has one
FIRST, PRINTED = "notebooks/00_start_here.ipynb", "in pages 35.6"
# Of what Colab has, by pip-freeze.gpu.txt of googlecolab/backend-info in June 2026. There, torch is
# 2.11.0+cu128.
COLABS = (
    *("numpy==2.0.2", "numba==0.60.0", "numba-cuda==0.22.2", "cuda-bindings==12.9.7"),
    *("ipython==7.34.0", "ipykernel==6.17.1", "jupyter_client==7.4.9", "traitlets==5.7.1"),
    *("matplotlib==3.10.0", "nbconvert==7.17.1", "nbformat==5.10.4", "safetensors==0.7.0"),
)


def container_lines() -> list[str]:
    return CONTAINER["postCreateCommand"].split(" && ")


def colab_lines() -> list[str]:
    """The block that begins with a clone, as a shell takes it."""
    (block,) = re.findall(r"^```\n(!git clone.*?)^```", COLAB, re.DOTALL | re.MULTILINE)
    return [line.removeprefix("!").removeprefix("%") for line in block.splitlines()]


# What the files say -----------------------------------------------------------------------------


def test_every_torch_is_the_pinned_one() -> None:
    (pin,) = re.findall(r"^torch==(.+)$", PINS, re.MULTILINE)
    for text in (CONTAINER["postCreateCommand"], POST_BUILD):
        assert re.findall(rf"torch==(\S+) --index-url {TORCH_INDEX}", text) == [pin]
    assert {*re.findall(r"torch==([\d.]+\w)", README)} <= {pin}


def test_the_readmes_lines_for_a_torch_without_cuda_are_those_of_the_container() -> None:
    shown = re.findall(rf"^(.+)\n(.+--index-url {TORCH_INDEX})", README, re.MULTILINE)
    assert shown == [tuple(container_lines()[:2])]


def test_a_codespace_opens_a_notebook_with_the_environments_python() -> None:
    custom = CONTAINER["customizations"]
    assert custom["codespaces"]["openFiles"] == [FIRST]
    python = custom["vscode"]["settings"]["python.defaultInterpreterPath"]
    assert python.endswith("/.venv/bin/python"), "where `make` sets up the environment"
    assert CONTAINER["waitFor"] == "postCreateCommand", "else the notebook opens without a kernel"


def test_a_link_to_a_service_leads_to_the_first_notebook() -> None:
    opened = re.findall(r"OWNER/REPO/(?:HEAD\?urlpath=lab/tree|blob/main)/([^)]+)\)", COLAB)
    assert opened == [FIRST, FIRST]  # Binder, Colab


# That the commands work -------------------------------------------------------------------------


@cache
def substitutes() -> dict[str, str]:
    """What stands in for what a machine can't reach."""
    try:
        urlopen(f"{TORCH_INDEX}/torch/", timeout=10).close()
    except URLError as error:
        print(f"torch comes from pip's own index, because {TORCH_INDEX} can't be reached: {error}")
        return {f" --index-url {TORCH_INDEX}": ""}
    return {}


def run(script: str, folder: Path, programs: Path) -> str:
    """What bash prints. It finds the programs in this folder, and the system's."""
    for text, instead in substitutes().items():
        script = script.replace(text, instead)
    ours = {"PYTHONPATH", "VIRTUAL_ENV", "PYTHONHOME"}
    environment = {name: value for name, value in os.environ.items() if name not in ours}
    environment |= {
        "PATH": f"{programs}{os.pathsep}{os.defpath}",
        "PIP_NO_COMPILE": "0",  # as --no-compile: a third of the time
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": f"url.file://{ROOT}.insteadOf",
        "GIT_CONFIG_VALUE_0": ADDRESS,
    }
    piped = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "encoding": "utf-8"}
    done = subprocess.run(["bash", "-ec", script], cwd=folder, env=environment, **piped)
    assert done.returncode == 0, done.stdout
    return done.stdout


def clone(folder: Path) -> Path:
    if not (ROOT / ".git").exists():
        pytest.skip("this is no clone, so there is nothing to clone")
    run(f"git clone -q --depth 1 {ADDRESS} walk", folder, folder)
    return folder / "walk"


def environment(folder: Path, *packages: str) -> Path:
    """The programs of an environment that has these packages."""
    venv.create(folder / "env", with_pip=True)
    programs = folder / "env" / "bin"
    for each in (packages[:1], packages[1:]):  # pip first, because it installs the others
        if each:
            run(f"python -m pip install -q {' '.join(each)}", folder, programs)
    return programs


def first_notebook(walk: Path, programs: Path) -> str:
    """Notebook 00, run, as Markdown."""
    command = f"python -m nbconvert --to markdown --execute --stdout {FIRST}"
    return run(command, walk, programs)


pinned_pip = next(line for line in PINS.splitlines() if line.startswith("pip=="))
minutes = pytest.mark.rest("nothing runs them; the tests above read them")
bash = pytest.mark.needs("POSIX")


@minutes
@bash
def test_a_codespace_runs_the_first_notebook(tmp_path: Path) -> None:
    """The first two lines are also the README's, for a torch without CUDA on Linux."""
    walk = clone(tmp_path)
    run("\n".join(container_lines()), walk, Path(sys.base_prefix, "bin"))
    assert PRINTED in first_notebook(walk, walk / ".venv" / "bin")


@minutes
@bash
def test_binder_runs_the_first_notebook(tmp_path: Path) -> None:
    walk, programs = clone(tmp_path), environment(tmp_path, pinned_pip)
    run(POST_BUILD, walk, programs)
    assert PRINTED in first_notebook(walk, programs)


@minutes
@bash
def test_colab_runs_the_first_notebook_and_keeps_its_own_packages(tmp_path: Path) -> None:
    torch = next(line for line in PINS.splitlines() if line.startswith("torch=="))
    torch += f" --index-url {TORCH_INDEX}"
    programs = environment(tmp_path, "pip==24.1.2")
    for packages in (torch, " ".join(COLABS)):
        run(f"pip install -q {packages}", tmp_path, programs)
    before = {*run("pip freeze", tmp_path, programs).splitlines()}
    run("\n".join(colab_lines()), tmp_path, programs)
    replaced = before - {*run("pip freeze", tmp_path, programs).splitlines()}
    assert {line.partition("==")[0] for line in replaced} == {"numba", "numba-cuda", "llvmlite"}
    assert PRINTED in first_notebook(tmp_path / "walk", programs)
