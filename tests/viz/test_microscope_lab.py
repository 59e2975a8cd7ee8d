"""The microscope and the notebooks in a running JupyterLab, in a real browser."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest

from tests.simt.microscope.reader import UNREADABLE

CELL = """
import numpy as np
from numba import cuda
from simt import launch
from simt.microscope import microscope

@cuda.jit
def double(out, a):
    i = cuda.grid(1)
    out[i] = a[i] + a[i]

report = launch(double, 2, 64, np.zeros(128, np.float32), np.ones(128, np.float32), trace=1)
microscope(report)
"""
READY = """() => {
  const panel = globalThis.jupyterapp?.shell.currentWidget;
  const session = panel?.sessionContext?.session;
  return panel?.sessionContext?.isReady && session?.kernel?.status === "idle";
}"""
# Opens notebooks with the kernel that runs, and saves them untouched. Returns which were unsaved.
UNSAVED = """async paths => {
  const { id, name } = jupyterapp.shell.currentWidget.sessionContext.session.kernel;
  const open = args => jupyterapp.commands.execute("docmanager:open", args);
  const unsaved = [];
  for (const path of paths) {
    const panel = await open({ path, kernel: { id, name } });
    await panel.context.ready;
    await panel.sessionContext.ready;
    const { kernel } = panel.sessionContext.session;
    await Promise.all([kernel.info, kernel.spec]);
    await new Promise(noted => setTimeout(noted, 100));  // in the notebook
    if (panel.context.model.dirty) unsaved.push(path);
    await panel.context.save();
    panel.dispose();
  }
  return unsaved;
}"""
OPTIONS = {
    "ServerApp.port": 0,  # any that is free
    "ServerApp.ip": "127.0.0.1",
    "LabApp.default_url": "/lab/tree/look.ipynb",
}
ROOT = Path(__file__).parents[2]
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
NEWS = re.search(r"labextension disable .*\$\(NEWS\)$", MAKEFILE, re.M)[0].split()[:2]
NEWS += ["--level=user", re.search(r"^NEWS +:= (.*)$", MAKEFILE, re.M)[1]]


@pytest.fixture
def lab(tmp_path: Path, chromium_path: str) -> Iterator[str]:
    """Address of a notebook in a JupyterLab of its own, with a token."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(CELL)])
    notebook.metadata.kernelspec = {"name": "python3", "display_name": "Python 3"}
    nbformat.write(notebook, tmp_path / "look.ipynb")
    command = [sys.executable, "-m", "jupyter", "lab", "--no-browser", "--allow-root"]
    command += ["--expose-app-in-browser", *(f"--{name}={of}" for name, of in OPTIONS.items())]
    folders = [
        "JUPYTER_CONFIG_DIR",
        "JUPYTER_RUNTIME_DIR",
        "JUPYTERLAB_WORKSPACES_DIR",
        "IPYTHONDIR",
    ]
    # This checkout's, which pip installs for all kernels of an environment.
    shutil.copytree(ROOT / "etc" / "ipython", tmp_path / "IPYTHONDIR" / "profile_default")
    own = {name: str(tmp_path / name) for name in folders} | {"SIMT_STATIC": ""}
    subprocess.run([sys.executable, "-m", "jupyter", *NEWS], env=os.environ | own, check=True)
    piped = {"stderr": subprocess.PIPE, "encoding": "utf-8"}
    with subprocess.Popen(command, env=os.environ | own, cwd=tmp_path, **piped) as server:
        words = (word for line in server.stderr for word in line.split())
        yield next(word for word in words if word.startswith("http://127.0.0.1"))
        server.terminate()  # it stops its kernels too


@pytest.mark.rest("test_microscope_page.py")
def test_the_microscope_works_in_jupyterlab(browser, lab: str) -> None:
    """Would catch: a module that anywidget cannot load, data that does not arrive, keys that
    JupyterLab takes for its own."""
    page = browser.new_page(viewport={"width": 1280, "height": 1000})
    page.set_default_timeout(60_000)
    errors: list[str] = []
    page.goto(lab)
    page.wait_for_function(READY)
    page.on("console", lambda said: errors.append(said.text) if said.type == "error" else None)
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.evaluate("jupyterapp.commands.execute('notebook:run-all-cells')")
    root = page.locator(".microscope")
    root.wait_for()
    assert "double, thread block (1, 0, 0)" in root.locator(".title").inner_text()
    root.locator(".sentence").click()
    for number in (1, 2, 3):
        assert root.locator(".sentence").inner_text().startswith(f"Instruction {number} of ")
        page.keyboard.press("ArrowRight")
    assert "news" not in " ".join(page.locator(".Toastify__toast").all_inner_texts())
    for theme in ("light", "dark"):
        change = "theme => jupyterapp.commands.execute('apputils:change-theme', { theme })"
        page.evaluate(change, f"JupyterLab {theme.title()}")
        page.locator(f"body[data-jp-theme-light={str(theme == 'light').lower()}]").wait_for(
            state="attached"
        )
        assert page.evaluate(UNREADABLE) == [], theme
        schemes = "all => all.map((one) => getComputedStyle(one).colorScheme)"
        assert {*root.locator("input, select").evaluate_all(schemes)} == {"light"}, (
            "a dark checkbox"
        )
    page.close()
    assert errors == []


@pytest.mark.rest
def test_a_notebook_that_is_only_opened_does_not_change(browser, lab: str, tmp_path: Path) -> None:
    """Would catch: metadata or a format that JupyterLab replaces, so that readers are asked to save
    what they didn't change, and git shows it."""
    committed = sorted((ROOT / "notebooks").glob("*.ipynb"))[::6]  # all have the same metadata
    copies = [Path(shutil.copy(path, tmp_path)) for path in committed]
    page = browser.new_page()
    page.set_default_timeout(60_000)
    page.goto(lab)
    page.wait_for_function(READY)
    assert page.evaluate(UNSAVED, [path.name for path in copies]) == []
    page.close()
    changed = [one.name for one, it in zip(copies, committed, strict=True) if not same(one, it)]
    assert changed == []


def same(one: Path, other: Path) -> bool:
    return one.read_bytes() == other.read_bytes()
