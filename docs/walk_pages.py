"""Sphinx extension: links to cells, the live microscope, sources as pages, ways to read.

The texts of notebooks, pages and the README don't change; only their links do.
"""

import json
import re
import shutil
from collections.abc import Iterator
from html import escape
from pathlib import Path

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.addnodes import download_reference
from sphinx.application import Sphinx

from simt.microscope.page import DATA, page

CELL_LINK = re.compile(r"\]\([\w./]*\.ipynb#cell-id=([\w-]+)\)")
TERM, TERM_LINK = re.compile(r'<a id="([\w-]+)"></a>'), re.compile(r"\]\(GLOSSARY\.md#([\w-]+)\)")
KERNEL = ("@cuda.jit", "@triton.jit")
ON_MONDAY = re.compile(r"for (\w+), ([^;.]+)[;.]")  # "for Triton, 00, 03 to 06 and 24;"
RANGE = re.compile(r"\b(\d\d)(?: to (\d\d))?\b")

MAIN, SIDE_TRIPS = range(17), range(20, 28)
LOOKED_UP = ["notebooks/QUESTIONS", "notebooks/INDEX", "notebooks/*"]
WINDOW = "pa_tutorial/exercises/window/TASKS"
TREES = {
    "The main path": MAIN,
    "Side trips": SIDE_TRIPS,
    "To look things up": [*LOOKED_UP, "COURSE", WINDOW],
    "The packages": ["pa_tutorial/*/README", "simt/README", "simt/*/README", "tests/README", "C*"],
}


def notebook(app: Sphinx, number: int | str) -> str:
    (path,) = Path(app.srcdir, "notebooks").glob(f"{int(number):02}_*.ipynb")
    return f"notebooks/{path.stem}"


def on_source(app: Sphinx, docname: str, source: list[str]) -> None:
    if docname.startswith("notebooks/") and source[0].startswith("{"):
        source[0] = json.dumps(walk_notebook(app, docname, json.loads(source[0])))
    else:
        source[0] = TERM.sub(r"(term-\1)=\n", links(source[0]))
    if docname == app.config.root_doc:
        source[0] += "".join(toctree(app, *tree) for tree in TREES.items())


def links(text: str) -> str:
    """Links to cells and to the glossary's terms, as Sphinx knows them."""
    return TERM_LINK.sub(r"](#term-\1)", CELL_LINK.sub(r"](#cell-\1)", text))


def toctree(app: Sphinx, caption: str, pages: list) -> str:
    names = [f"/{notebook(app, p) if isinstance(p, int) else p}" for p in pages]
    options = f":hidden:\n:glob:\n:caption: {caption}"
    return "\n\n```{toctree}\n" + "\n".join([options, "", *names]) + "\n```\n"


def walk_notebook(app: Sphinx, docname: str, content: dict) -> dict:
    cells = []
    for cell in content["cells"]:
        text = "".join(cell["source"])
        target = f"(cell-{cell['id']})=\n"  # an id begins with a letter
        if cell["cell_type"] == "markdown":
            if text.startswith("<details>"):  # a place to lead to needs more than HTML
                text = f":::{{container}} folded\n{text}\n:::"
            cells.append(cell | {"source": target + links(text)})
            continue
        cells.append({"cell_type": "markdown", "id": f"{cell['id']}-at", "metadata": {}})
        cells[-1]["source"] = target
        if any(mark in text for mark in KERNEL):
            cell["metadata"].setdefault("tags", []).append("kernel")
        for data in (output["data"] for output in cell["outputs"] if "data" in output):
            alt = "".join(data.get("text/plain", ""))
            cell["metadata"]["mystnb"] = {"image": {"alt": alt}}
            if DATA in data:
                data["text/html"] = live(app, cell["id"], escape(alt), "".join(data.pop(DATA)))
        cells.append(cell)
    if ways := "\n".join(on_monday(app, docname)):
        cells.insert(1, {"cell_type": "markdown", "id": "way", "metadata": {}, "source": ways})
        cells.append(cells[1] | {"id": "way-on"})
    return content | {"cells": cells}


def live(app: Sphinx, name: str, title: str, data: str) -> str:
    """A cell's microscope is a separate page shown in a frame: no network, any browser."""
    folder = Path(app.outdir, "microscope")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.html").write_text(page(title, data), encoding="utf-8")
    return f'<iframe class="microscope" src="../microscope/{name}.html" title="{title}"></iframe>'


def on_monday(app: Sphinx, docname: str) -> Iterator[str]:
    """The sentences in a notebook about the ways for Monday, taken from the README."""
    said = Path(app.srcdir, "README.md").read_text(encoding="utf-8")
    ways = said.partition("**Change it on Monday**")[2].split("\n")[0]
    for kernel, listed in ON_MONDAY.findall(ways):
        way = numbers_in(listed)
        for number, on in zip(way, [*way[1:], None], strict=True):
            if docname == notebook(app, number):
                after = (
                    f"go on with [{on:02}](/{notebook(app, on)}.ipynb)" if on else "you are done"
                )
                yield f":::{{container}} monday\nFor {kernel} on Monday: {after}.\n:::\n"


def numbers_in(listed: str) -> list[int]:
    """Those of "00, 03 to 06 and 24"."""
    ranges = RANGE.findall(listed)
    return [n for first, last in ranges for n in range(int(first), int(last or first) + 1)]


def on_doctree(app: Sphinx, doctree: nodes.document) -> None:
    """Links to the project's files lead to pages that show them."""
    for link in list(doctree.findall(download_reference)):
        target = Path(app.env.relfn2path(link["reftarget"], app.env.docname)[1])
        file = target.resolve().relative_to(app.srcdir).as_posix()
        app.env.walk_files = getattr(app.env, "walk_files", set()) | {file}
        uri = "../" * app.env.docname.count("/") + page_of(file)
        link.replace_self(nodes.reference("", "", *link.children, refuri=uri))


def page_of(file: str) -> str:
    return file if file.endswith((".html", ".svg")) else f"{file}.html"


def source_pages(app: Sphinx) -> Iterator[tuple[str, dict, str]]:
    for file in sorted(getattr(app.env, "walk_files", ())):
        path = Path(app.srcdir, file)
        if page_of(file) == file:
            Path(app.outdir, file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, Path(app.outdir, file))
            continue
        language = "python" if path.suffix == ".py" else "text"
        text = path.read_text(encoding="utf-8")
        body = app.builder.highlighter.highlight_block(text, language)
        yield file, {"title": file, "body": f"<h1>{file}</h1>{body}"}, "page.html"


def math(writer: nodes.NodeVisitor, node: nodes.Element) -> None:
    display = "block" if isinstance(node, nodes.math_block) else "inline"
    writer.body.append(convert(node.astext(), display=display))
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_html_math_renderer("mathml", (math, None), (math, None))
    app.connect("source-read", on_source)
    app.connect("doctree-read", on_doctree, priority=100)  # before Sphinx collects downloads
    app.connect("html-collect-pages", source_pages)
    return {"parallel_read_safe": False, "parallel_write_safe": True}
