"""How many functions of a kernel are the reader's, and which."""

from collections.abc import Iterable, Mapping

from pa_tutorial.exercises.blank import all_blanks
from pa_tutorial.exercises.reader_files import files_with
from pa_tutorial.kernels.sources import FILES

NOT_RUN = {"v2": ("paged_attention_v1",)}  # of a kernel's files: v2 has its own in its place


def blanks_in(file: str) -> set[str]:
    """The functions of a file that a reader can write."""
    return {blank.function for blank in all_blanks().values() if blank.file == file}


def functions_of(kernel: str) -> dict[str, str]:
    """Those of a kernel that run, each with its file: the last that defines it."""
    last = {name: file for file in files_with(kernel) for name in blanks_in(file)}
    return {name: file for name, file in last.items() if name not in NOT_RUN.get(kernel, ())}


def how_many(kernel: str, yours: Mapping[str, Iterable[str]]) -> str:
    """7 of 12 functions of v1 are yours

    yours  the names of the reader's functions, by file
    """
    known = functions_of(kernel)
    number = sum(known.get(name) == file for file, names in yours.items() for name in {*names})
    of = f" of {kernel}" if kernel in FILES else ""
    return f"{number} of {len(known)} functions{of} {'is' if number == 1 else 'are'} yours"


def whose(file: str, yours: Iterable[str], kernel: str = "") -> str:
    """Which functions of a file that a reader can write are theirs, and which ours; for a kernel,
    only those that run."""
    blanks, idle = blanks_in(file), set()
    if kernel:
        idle = blanks - {name for name, where in functions_of(kernel).items() if where == file}
    both = {"Yours": sorted({*yours} - idle), "Ours": sorted(blanks - {*yours} - idle)}
    return " ".join(f"{who}: {', '.join(names)}." for who, names in both.items() if names)
