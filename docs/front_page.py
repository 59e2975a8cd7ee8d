"""Sphinx extension: the front page, each notebook's place in the walk, what shared links show."""

import json
import re
from base64 import b64decode
from collections.abc import Iterator
from html import escape
from pathlib import Path

from docutils import nodes
from sphinx.application import Sphinx
from walk_pages import MAIN, ON_MONDAY, SIDE_TRIPS, notebook, numbers_in

TITLE = "PagedAttention, step by step"
PAYOFF = (
    "The same GPU memory serves 8 users, or 36. Write the kernel that does it, vLLM's own, in "
    "Python, on a laptop without a GPU."
)
WAY = re.compile(r"^- \*\*(.+?)\*\*([^:]+): (.+)$", re.MULTILINE)
SHARED = "shared.png"


def front_page(app: Sphinx) -> Iterator[tuple[str, dict, str]]:
    """index.html, from front.html and the README's three ways."""
    picture = first_picture(app)
    Path(app.outdir, SHARED).write_bytes(b64decode(picture["image/png"]))
    context = {
        "title": TITLE,
        "payoff": PAYOFF,
        "alt": "".join(picture["text/plain"]),
        "first": f"{notebook(app, 0)}.html",
        "ways": [*ways(app)],
    }
    template = Path(app.confdir, "front.html").read_text(encoding="utf-8")
    body = app.builder.templates.render_string(template, context)
    yield "index", {"title": TITLE, "body": body, "toc": "", "display_toc": False}, "page.html"


def first_picture(app: Sphinx) -> dict:
    """Notebook 00's, as it is committed: with and without pages."""
    cells = json.loads(Path(app.srcdir, f"{notebook(app, 0)}.ipynb").read_text(encoding="utf-8"))
    outputs = (output for cell in cells["cells"] for output in cell.get("outputs", []))
    return next(output["data"] for output in outputs if "image/png" in output.get("data", {}))


def ways(app: Sphinx) -> Iterator[dict]:
    """Name, time, and for each kernel the pages to read, as the README has them."""
    readme = Path(app.srcdir, "README.md").read_text(encoding="utf-8")
    for name, takes, what in WAY.findall(readme.partition("## Three ways")[2]):
        lists = ON_MONDAY.findall(what) or [("", what.partition(".")[0])]
        listed = [
            {"kernel": f"{kernel}: " if kernel else "", "pages": [*pages(app, numbers)]}
            for kernel, numbers in lists
        ]
        yield {"name": name, "takes": takes, "lists": listed}


def pages(app: Sphinx, listed: str) -> Iterator[tuple[str, str]]:
    for number in numbers_in(listed):
        name = notebook(app, number)
        yield f"{name}.html", app.env.titles[name].astext()


def on_page(
    app: Sphinx, name: str, template: str, context: dict, doctree: nodes.document | None
) -> None:
    """Every page leads back to the front page, and says what a link to it is about."""
    context["master_doc"] = "index"
    if re.match(r"notebooks/\d\d_", name):
        context["body"] = place(app, name) + context["body"]
    first = next(doctree.findall(nodes.paragraph), None) if doctree else None
    says = first.astext() if first and name != "README" else PAYOFF
    told = {"title": re.sub("<.*?>", "", context.get("title", TITLE)), "description": says}
    told |= {"type": "website", "image": f"{app.config.html_baseurl}{SHARED}"}
    tags = (f'<meta property="og:{key}" content="{escape(text)}">' for key, text in told.items())
    context["metatags"] = context.get("metatags", "") + "\n".join(tags)


def place(app: Sphinx, name: str) -> str:
    """The numbers of the path that a notebook is on, its own marked."""
    number = int(Path(name).name[:2])
    path, label = (MAIN, "Main path") if number in MAIN else (SIDE_TRIPS, "Side trips")
    links = []
    for other in path:
        mark = ' aria-current="page"' if other == number else ""
        file = Path(notebook(app, other)).name
        title = escape(app.env.titles[f"notebooks/{file}"].astext())
        links.append(f'<a href="{file}.html" title="{title}"{mark}>{other:02}</a>')
    return f'<nav class="place" aria-label="{label}">{label} {" ".join(links)}</nav>'


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("html-collect-pages", front_page)
    app.connect("html-page-context", on_page)
    return {"parallel_read_safe": False, "parallel_write_safe": True}
