"""Runs the cells of a notebook in IPython, as Run All does, with text in place of pictures."""

import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import chdir, contextmanager
from importlib.util import find_spec
from tempfile import TemporaryDirectory
from types import CodeType

import IPython
from IPython.core.compilerop import CachingCompiler
from IPython.core.interactiveshell import InteractiveShell
from traitlets import Type
from traitlets.config import Config

from simt.programs import Cell, begin_in, ended_with, print_without_ours

IPYTHON = os.path.dirname(IPython.__file__) + os.sep
RUN_A_CELL = ("capture", "time")  # the magics that run the rest of their cell


class Compiler(CachingCompiler):
    """Names what it compiles after the cell, also if a magic runs it, so that it has a text."""

    cell = 0  # the number of the running cell
    text = ""  # what was parsed last

    def cache(self, transformed_code: str, number: int = 0, raw_code: str | None = None) -> str:
        return super().cache(transformed_code, self.cell, raw_code)

    def ast_parse(self, source: str, *how: str, **more: str) -> object:
        self.text = source
        return super().ast_parse(source, *how, **more)

    def __call__(self, source: object, filename: str, *how: object, **more: object) -> CodeType:
        if filename in ("<timed exec>", "<timed eval>"):
            filename = self.cache(self.text)
        return super().__call__(source, filename, *how, **more)


class NotebookShell(InteractiveShell):
    """Shows errors as Python shows them, without IPython's frames and the simulator's."""

    compiler_class = Type(Compiler)

    def __init__(self, **options: object) -> None:
        self.stderr = sys.stderr  # errors are shown though %%capture takes what a cell prints
        super().__init__(**options)

    def first_error(self, cells: Sequence[Cell]) -> BaseException | None:
        """Run the cells up to the first error that ends the run, and return it. It has been shown,
        as have errors of cells that may raise."""
        for cell in cells:
            self.compile.cell = self.execution_count
            try:
                result = self.run_cell(cell.text, store_history=True)
            except KeyboardInterrupt as outside_of_cells:
                return outside_of_cells
            error = result.error_before_exec or result.error_in_exec
            if isinstance(error, KeyboardInterrupt) or (error is not None and not cell.may_raise):
                return error
        return None

    def run_cell_magic(self, magic_name: str, line: str, cell: str) -> object:
        if magic_name in RUN_A_CELL and not cell.startswith("%%"):
            cell = f"#\n{cell}"  # lines are counted from the top of the cell
        return super().run_cell_magic(magic_name, line, cell)

    def _showtraceback(self, etype: type, evalue: BaseException, stb: list[str]) -> None:
        if not isinstance(evalue, SystemExit | KeyboardInterrupt):
            print_without_ours(evalue, hidden=(IPYTHON,), to=self.stderr)

    def enable_gui(self, gui: str | None = None) -> None:
        """There are no windows."""

    def ask_exit(self) -> None:
        """For exit and quit."""
        raise SystemExit


@contextmanager
def shell_in(folder: str) -> Iterator[NotebookShell]:
    """A new shell that works in this folder. It leaves no history and reads no profile."""
    if find_spec("matplotlib_inline"):  # as Jupyter does
        os.environ.setdefault("MPLBACKEND", "module://matplotlib_inline.backend_inline")
    warnings.filterwarnings("ignore", "To exit: use 'exit'")  # we do exit
    config = Config()
    config.HistoryManager.enabled = False
    config.InteractiveShell.colors = "nocolor"
    with TemporaryDirectory() as home, chdir(folder):
        shell = NotebookShell.instance(config=config, ipython_dir=home)
        shell.extension_manager.load_extension("storemagic")  # %store, as in Jupyter
        try:
            yield shell
        finally:
            NotebookShell.clear_instance()


def run_notebook(cells: Sequence[Cell], path: str, arguments: Sequence[str]) -> int | None:
    """Returns the exit code, or None after an error."""
    begin_in(path, arguments)
    with shell_in(sys.path[0]) as shell:
        error = shell.first_error(cells)
    return 0 if error is None else ended_with(error)
