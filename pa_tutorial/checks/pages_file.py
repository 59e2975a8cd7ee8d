"""The memory manager in a file, such as a reader's my_pages.py: load it, and check it.

python -m pa_tutorial.checks block_manager my_pages.py
"""

import runpy
from pathlib import Path

from pa_tutorial.checks import check
from pa_tutorial.checks.pages_at_work import MakePages
from pa_tutorial.checks.random_operations import shortest_failure
from pa_tutorial.checks.running import describe


class UnusableFile(Exception):
    """A file without a memory manager that can be tried; why, in one line."""


def check_file(path: Path) -> bool:
    """Print what the stories and random operations say about the Pages of a file. Returns whether
    it is right."""
    try:
        make_pages = pages_of(path)
        result = check("block_manager", make_pages, raises=False)
        failure = shortest_failure(make_pages, path.name)
    except (UnusableFile, ImportError) as error:
        print(error)
        return False
    if failure:  # shorter than any story that fails
        print(f"{path.name}: {result.passed} of {result.total} stories are right.\n{failure}")
    else:
        print(result)
        print(f"{path.name}: random operations found nothing wrong.")
    return result.ok and not failure


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
    except Exception as error:
        raise UnusableFile(f"{path.name}: Pages(8, 4) fails: {in_a_line(error)}") from error
    return make_pages


def in_a_line(error: BaseException) -> str:
    return " ".join(describe(error).split())
