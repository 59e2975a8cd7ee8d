"""The memory manager in a file, such as a reader's my_pages.py: load it, and check it.

python -m pa_tutorial.checks block_manager my_pages.py
"""

import runpy
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path

from pa_tutorial.checks import check
from pa_tutorial.checks.endless import NO_END, stopped_if_endless
from pa_tutorial.checks.pages_at_work import MakePages
from pa_tutorial.checks.printed import FewLines
from pa_tutorial.checks.random_operations import shortest_failure
from pa_tutorial.checks.running import describe
from pa_tutorial.checks.showing import Result
from pa_tutorial.kernels.sources import Source
from pa_tutorial.paging.pages import Pages
from pa_tutorial.tracebacks import ShortInNotebooks


class UnusableFile(ShortInNotebooks):
    """A file without a memory manager that can be tried; why, in one line."""


def check_file(path: Path) -> bool:
    """Print what the stories and random operations say about the Pages of a file. Returns whether
    it is right."""
    printed = FewLines()
    try:
        with redirect_stdout(printed):
            result = told_stories(path)
            # Each random try would take as long.
            is_endless = any(NO_END in " ".join(case.diagnosis.split()) for case in result.cases)
            anew = partial(pages_of, path)
            failure = "" if is_endless else shortest_failure(anew(), path.name, anew)
    except (UnusableFile, ImportError) as error:
        print(error)
        return False
    finally:
        printed.say_how_many_more()
    if failure:  # shorter than any story that fails
        print(f"{path.name}: {result.passed} of {result.total} stories are right.\n{failure}")
    else:
        print(result)
    if not failure and not is_endless:
        print(f"{path.name}: random operations found nothing wrong.")
    return result.ok and not failure


def told_stories(path: Path) -> Result:
    """What the stories say about the Pages of a file; a loop without an end is stopped."""
    with stopped_if_endless([Source("", str(path), 1)]) as begin_anew:
        made = pages_of(path)

        def make_pages(num_blocks: int, block_size: int) -> Pages:
            begin_anew()
            return made(num_blocks, block_size)

        return check("block_manager", make_pages, raises=False)


def pages_of(path: Path) -> MakePages:
    """The class Pages of a Python file. Raises UnusableFile if there is none that can be made."""
    if not path.is_file():
        raise UnusableFile(f"{path}: no such file")
    try:
        make_pages = runpy.run_path(str(path), run_name=path.stem).get("Pages")
    except SyntaxError as error:
        line = f"line {error.lineno}: " if error.lineno else ""
        raise UnusableFile(f"{path.name} isn't Python: {line}{error.msg}") from error
    except (Exception, SystemExit) as error:
        raise UnusableFile(f"{path.name} can't be run: {in_a_line(error)}") from error
    if not callable(make_pages):
        raise UnusableFile(f"{path.name} has no class Pages")
    try:
        make_pages(8, 4)
    except (Exception, SystemExit) as error:
        raise UnusableFile(f"{path.name}: Pages(8, 4) fails: {in_a_line(error)}") from error
    return make_pages


def in_a_line(error: BaseException) -> str:
    return " ".join(describe(error).split())
