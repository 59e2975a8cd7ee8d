"""my_pages.py: pages.py with what a reader has written in notebooks 01 to 06, and 20.

    mine = my_pages()              # theirs, where saved; ours for the rest
    slot_mapping = mine.slot_mapping
    mine = my_pages(release, fork) # with these in it, too
    save_pages(release, fork)      # at the end of a notebook

The file lies beside my_kernel/. It is plain Python, so `python -m pa_tutorial.checks block_manager
my_pages.py` runs it. YOURS in it names the functions that are the reader's; all others are ours.
"""

from collections.abc import Callable, Iterable, Iterator
from types import ModuleType

from pa_tutorial.exercises.ours import readers
from pa_tutorial.exercises.reader_files import made
from pa_tutorial.exercises.saved_files import PAGES, place_of, spoken
from pa_tutorial.exercises.saving import save_functions, saved_sources, set_aside
from pa_tutorial.exercises.together import helpers_of
from pa_tutorial.exercises.whose import how_many
from pa_tutorial.kernels.sources import KernelFileError, Source, source_of


def my_pages(*functions: Callable) -> ModuleType:
    """pages.py as a namespace, with the functions that the reader has saved, and with these.

    Without functions, prints whose they are. Nothing saved raises anything: a file that can't be
    used is named, and our functions take the place of its; a damaged one is set aside, as
    my_pages_1.py. Raises KernelFileError for one of these functions that can't take the place of
    ours.
    """
    found = saved_pages() if functions else told_whose()
    mine = {**found, **with_helpers(functions)}
    return made(PAGES, ((PAGES, tuple(mine.values())),))


def told_whose() -> dict[str, Source]:
    """What was saved; prints what of it can't be used, and how many functions are theirs."""
    path = place_of(PAGES)
    words = spoken(path) if path.exists() else f"There is no {path.name} yet"
    found = saved_pages(print, set_aside)
    print(f"{words}: {how_many(PAGES, {PAGES: found})}.")
    return found


def save_pages(*functions: Callable) -> None:
    """Add a reader's functions to my_pages.py, with those of theirs that they call; print what
    became of it. See saving.py."""
    mine = with_helpers(tuple(savable(functions)))
    if not mine:
        print(f"None of these functions is yours yet, so {place_of(PAGES).name} isn't written.")
        return
    save_functions({PAGES: mine}, vars(made(PAGES)))


def savable(functions: Iterable[Callable]) -> Iterator[Callable]:
    """Those with a source; says of which there is none, as of one from a cell with %%time."""
    for one in functions:
        try:
            source_of(one)
            yield one
        except KernelFileError as error:
            print(f"{error}: not saved.")


def with_helpers(functions: tuple[Callable, ...]) -> dict[str, Callable]:
    """The reader's among some functions, and what these call that pages.py has not."""
    mine = [*readers(functions).values()]
    return readers([*helpers_of(mine, PAGES), *mine])


def saved_pages(*say_and_mend: Callable) -> dict[str, Source]:
    """The reader's functions that were saved and can be used: see saved_sources."""
    return saved_sources([PAGES], vars(made(PAGES)), *say_and_mend).get(PAGES, {})
