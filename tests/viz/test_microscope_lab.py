"""The microscope in a running JupyterLab, in a real browser."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest

CELL = """
import numpy as np
from numba import cuda
from pa_tutorial.simt import launch
from pa_tutorial.viz.microscope import microscope

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
SECONDS = 60


@pytest.fixture
def lab(tmp_path: Path, chromium_path: str) -> Iterator[str]:
    """Address of a notebook in a JupyterLab of its own, with a token."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(CELL)])
    notebook.metadata.kernelspec = {"name": "python3", "display_name": "Python 3"}
    nbformat.write(notebook, tmp_path / "look.ipynb")
    command = [sys.executable, "-m", "jupyter", "lab", "--no-browser", "--allow-root"]
    options = {
        "ServerApp.port": 0,  # any that is free
        "ServerApp.ip": "127.0.0.1",
        "ServerApp.root_dir": tmp_path,
        "LabApp.news_url": None,
        "LabApp.check_for_updates_class": "jupyterlab.NeverCheckForUpdate",
    }
    command += ["--expose-app-in-browser", *(f"--{name}={of}" for name, of in options.items())]
    folders = ("CONFIG", "RUNTIME")
    own = {f"JUPYTER_{name}_DIR": str(tmp_path / name.lower()) for name in folders}
    own |= {"JUPYTERLAB_WORKSPACES_DIR": str(tmp_path / "workspaces"), "PA_TUTORIAL_STATIC": ""}
    with (
        (tmp_path / "log").open("w", encoding="utf-8") as log,
        subprocess.Popen(command, env=os.environ | own, stdout=log, stderr=log) as server,
    ):
        try:
            yield address(server, tmp_path)
        finally:
            server.terminate()  # it stops its kernels too
            try:
                server.wait(20)
            except subprocess.TimeoutExpired:
                server.kill()


def address(server: subprocess.Popen, folder: Path) -> str:
    """Where the server waits; it leaves a note, which may be half written, when it is ready."""
    note = folder / "runtime" / f"jpserver-{server.pid}.json"
    end = time.monotonic() + SECONDS
    while not (note.exists() and note.read_text(encoding="utf-8").endswith("}")):
        waiting = server.poll() is None and time.monotonic() < end
        assert waiting, (folder / "log").read_text(encoding="utf-8")
        time.sleep(0.1)
    said = json.loads(note.read_text(encoding="utf-8"))
    return f"{said['url']}lab/tree/look.ipynb?token={said['token']}"


def test_the_microscope_works_in_jupyterlab(browser, lab: str) -> None:
    """Would catch: a module that anywidget cannot load, data that does not arrive, keys that
    JupyterLab takes for its own."""
    page = browser.new_page(viewport={"width": 1280, "height": 1000})
    page.set_default_timeout(SECONDS * 1000)
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
    sentences = [root.locator(".sentence").inner_text()]
    for _ in range(2):
        page.keyboard.press("ArrowRight")
        sentences.append(root.locator(".sentence").inner_text())
    assert [" ".join(words.split()[:2]) for words in sentences] == [
        f"Instruction {n}" for n in (1, 2, 3)
    ]
    page.close()
    assert errors == []
