"""The index as Markdown."""

from pathlib import Path

from pa_tutorial.index.block_manager import BLOCK_MANAGER
from pa_tutorial.index.caches import CACHES
from pa_tutorial.index.cpu import CPU
from pa_tutorial.index.distributed import DISTRIBUTED
from pa_tutorial.index.engine import ENGINE
from pa_tutorial.index.entry import Cell, Line, Question, Symbol, VllmFile
from pa_tutorial.index.find import ROOT, EntryError, FoundCell, find_cell, find_line, find_run
from pa_tutorial.index.kernel import KERNEL
from pa_tutorial.index.questions import MORE_QUESTIONS, QUESTIONS
from pa_tutorial.index.today import OTHERS, TODAY
from pa_tutorial.index.triton import TRITON

FILES = (*KERNEL, *CACHES, *BLOCK_MANAGER, *CPU, *TRITON, *ENGINE, *DISTRIBUTED, *TODAY, *OTHERS)

HEAD = """\
# Index

Written by `make index`; change `pa_tutorial/index/` and not this file. Cells are counted from 1, \
text and code alike. In JupyterLab a link opens the notebook at the cell."""

SYMBOLS_HEAD = """\
## From vLLM's names to ours

The files are those of vLLM (`vllm-project/vllm`), the names in the order in which they stand \
there. The kernel moved and was removed later, so the commit that we read is named (of some \
files it is not known). Files under `vllm/v1/` are of today's engine; at the end stand those of \
other projects, with the name of the project."""

QUESTIONS_HEAD = """\
## Questions people ask

What people ask about this kernel, and the cells that answer by running."""

MORE_HEAD = """\
## Questions around the kernel

What else a reader may want to know: memory, sharing, other kernels, measuring, and today's \
engines."""


def index(
    files: tuple[VllmFile, ...] = FILES,
    questions: tuple[Question, ...] = QUESTIONS,
    more: tuple[Question, ...] = MORE_QUESTIONS,
    root: Path = ROOT,
) -> str:
    """All of notebooks/INDEX.md. Raises EntryError for a place that is not there exactly once."""
    parts = [HEAD, SYMBOLS_HEAD]
    for file in files:
        version = f" ({file.version})" if file.version else ""
        project = f"{file.project}: " if file.project else ""
        parts.append(f"### {project}`{file.path}`{version}")
        rows = [symbol_row(file, symbol, root) for symbol in file.symbols]
        parts.append(table((file.project or "vLLM", "what it is", "ours", "shown in"), rows))
    for head, asked in ((QUESTIONS_HEAD, questions), (MORE_HEAD, more)):
        rows = [question_row(question, root) for question in asked]
        parts += [head, table(("question", "answer", "shown in"), rows)]
    return "\n\n".join(parts) + "\n"


def symbol_row(file: VllmFile, symbol: Symbol, root: Path) -> tuple[str, ...]:
    entry = f"{symbol.name} in {file.path}"
    if not symbol.lines:
        raise EntryError(f"{entry}: it has no line of ours")
    lines = [line_link(line, find_line(entry, line, root)) for line in symbol.lines]
    cells = [cell_link(cell, find_cell(entry, cell, root)) for cell in symbol.cells]
    return symbol.name, symbol.what, "<br>".join(lines), "<br>".join(cells)


def question_row(question: Question, root: Path) -> tuple[str, ...]:
    found = find_run(question.text, question.cells, root)
    cells = [cell_link(cell, place) for cell, place in zip(question.cells, found, strict=True)]
    return question.text, question.answer, "<br>".join(cells)


def line_link(line: Line, number: int) -> str:
    return f"[{Path(line.path).name}:{number}](../{line.path}#L{number})"


def cell_link(cell: Cell, found: FoundCell) -> str:
    text = f"{cell.notebook[:2]}, cell {found.number}: {found.heading}"
    return f"[{text}]({cell.notebook}.ipynb#cell-id={found.id})"


def table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    cells = [[cell.replace("|", r"\|") for cell in row] for row in rows]
    lines = [head, ("---",) * len(head), *cells]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
