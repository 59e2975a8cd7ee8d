"""The errors of the sources as Markdown."""

from pathlib import Path

from pa_tutorial.index.entry import Erratum, Said
from pa_tutorial.index.errata import ERRATA, NOT_RUN
from pa_tutorial.index.find import ROOT, EntryError, find_cell, find_run
from pa_tutorial.index.sources import SOURCES
from pa_tutorial.index.write import cell_link, table

HEAD = """\
# Errors of the sources

Written by `make index`; change `pa_tutorial/index/` and not this file. Cells are counted from 1, \
text and code alike. In JupyterLab a link opens the notebook at the cell.

The walk grew out of five texts, and much of it is learnt from them: {sources}. This is what we \
found in them that is not so, in the order of the walk; what they say is put in our words. Only \
some of it harms: there are slips, things left out, what is right for one version of the kernel \
only, and code that fails with other sizes than its author's."""

RUN_HEAD = "## Shown by a run"

NOT_RUN_HEAD = "## Not shown by a run"


def errata(
    shown: tuple[Erratum, ...] = ERRATA,
    not_run: tuple[Erratum, ...] = NOT_RUN,
    root: Path = ROOT,
) -> str:
    """All of notebooks/ERRATA.md. Raises EntryError for an entry that nobody can follow."""
    sources = ", ".join(f"*{source.title}* ({source.author})" for source in SOURCES)
    rows = [run_row(erratum, root) for erratum in shown]
    rest = [not_run_row(erratum, root) for erratum in not_run]
    parts = [
        HEAD.format(sources=sources),
        RUN_HEAD,
        table(("what is said", "by", "what is true", "shown in"), rows),
        NOT_RUN_HEAD,
        table(("what is said", "by", "what is true", "why no run shows it"), rest),
    ]
    return "\n\n".join(parts) + "\n"


def run_row(erratum: Erratum, root: Path) -> tuple[str, ...]:
    found = find_run(erratum.claim, erratum.cells, root)
    cells = [cell_link(cell, place) for cell, place in zip(erratum.cells, found, strict=True)]
    return erratum.claim, by(erratum), erratum.truth, "<br>".join(cells)


def not_run_row(erratum: Erratum, root: Path) -> tuple[str, ...]:
    if not erratum.not_run:
        raise EntryError(f"{erratum.claim}: it does not say why no cell shows it")
    found = [find_cell(erratum.claim, cell, root) for cell in erratum.cells]
    cells = [cell_link(cell, place) for cell, place in zip(erratum.cells, found, strict=True)]
    return erratum.claim, by(erratum), erratum.truth, "<br>".join([erratum.not_run, *cells])


def by(erratum: Erratum) -> str:
    """Which sources, and where in them."""
    if not erratum.said:
        raise EntryError(f"{erratum.claim}: no source says it")
    return "<br>".join(line(said, erratum.claim) for said in erratum.said)


def line(said: Said, claim: str) -> str:
    if said.source not in SOURCES:
        raise EntryError(f"{claim}: {said.source.title!r} is none of the sources")
    return f"*{said.source.title}*, {said.where}"
