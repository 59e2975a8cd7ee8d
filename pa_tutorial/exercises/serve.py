"""Serve with what a reader has written: my_pages.py and my_kernel/, once each passes its check.

    Pages = my_checked_pages()                 # in a notebook: theirs, or ours where it is refused
    kernel = my_checked_kernel("v1_vector")

    python -m pa_tutorial.exercises.serve --pages my_pages.py --kernel my_kernel "The for statement"

What isn't theirs yet is ours, and said. From the shell, a file that doesn't pass its check ends the
command with the verdict.
"""

import sys
from contextlib import suppress
from pathlib import Path

from pa_tutorial.arguments import require
from pa_tutorial.checks import check
from pa_tutorial.checks.pages_at_work import MakePages
from pa_tutorial.checks.pages_file import check_file, pages_of
from pa_tutorial.engine.command import answer, engine_options, make_parser, prompts_of
from pa_tutorial.engine.llm import LLM
from pa_tutorial.exercises.my_kernel import KERNELS, load, saved
from pa_tutorial.exercises.my_pages import my_pages
from pa_tutorial.exercises.our_kernels import BACKENDS
from pa_tutorial.exercises.reader_files import made
from pa_tutorial.exercises.saved_files import (
    PAGES,
    DamagedError,
    folder_of,
    place_of,
    sources_in,
    spoken,
    text_in,
)
from pa_tutorial.exercises.whose import how_many
from pa_tutorial.kernels.cuda_backends import CudaBackend
from pa_tutorial.kernels.template import files_of
from pa_tutorial.printing import print_anything

STAGES = {kernel: stage for stage, kernel in KERNELS.items()}
REFUSED = "{} is refused; ours serves in its place."


def my_checked_pages() -> MakePages:
    """The reader's saved Pages; ours if there is nothing saved, or if it doesn't pass its check."""
    mine, path = my_pages(), place_of(PAGES)
    if not path.exists() or check_file(path):
        return mine.Pages
    print(REFUSED.format(spoken(path)))
    return made(PAGES).Pages


def my_checked_kernel(kernel: str) -> CudaBackend:
    """A kernel with the reader's saved functions; ours if they don't pass its check together.

    kernel  "naive", "v1", "v1_vector" or "v2"

    Raises ValueError for another name.
    """
    require(kernel in BACKENDS, "kernel", repr(kernel), f"one of {', '.join(BACKENDS)}")
    ours = BACKENDS[kernel]
    mine = ours.with_functions(**saved(kernel))
    if mine == ours or passes(kernel, mine):
        return mine
    print(REFUSED.format(f"Your {kernel}"))
    return ours


def passes(kernel: str, backend: CudaBackend) -> bool:
    """Whether a kernel passes the short check of its stage; prints the verdict."""
    result = check(STAGES[kernel], backend, short=True, raises=False)
    print(result)
    return result.ok


# From the shell -----------------------------------------------------------------------------------


class Refused(ValueError):
    """A file doesn't pass its check, whose verdict is printed."""


def pages_in(path: Path) -> MakePages:
    """The Pages of a file, or ours if there is no such file. Raises Refused."""
    if not path.exists():
        print(f"There is no {spoken(path)}: these pages are ours.")
        return made(PAGES).Pages
    with suppress(DamagedError):  # a file of one's own has no YOURS, and may still have Pages
        print(f"{spoken(path)}: {how_many(PAGES, {PAGES: sources_in(text_in(path), path)})}.")
    if not check_file(path):
        raise Refused(f"{spoken(path)} is refused")
    return pages_of(path)


def kernel_in(folder: Path, kernel: str) -> CudaBackend:
    """The kernel of the files in a folder, or ours if it has none. Raises Refused, and what `load`
    raises."""
    if not any((folder / f"{file}.py").exists() for file in files_of(kernel)):
        print(f"There is no {kernel} in {spoken(folder)}: this kernel is ours.")
        return BACKENDS[kernel]
    backend = load(folder, kernel)
    if not passes(kernel, backend):
        raise Refused(f"{spoken(folder)} is refused")
    return backend


def main(arguments: list[str] | None = None) -> int:
    """Print the answers to each prompt. Returns 1 if a file is refused, or as the engine's command
    does."""
    parser = make_parser("python -m pa_tutorial.exercises.serve", __doc__)
    parser.add_argument("--pages", type=Path, help="(my_pages.py, if it is here)")
    parser.add_argument("--kernel", type=Path, help="(my_kernel, if it is here)")
    parser.set_defaults(backend="cuda_v1_vector", model="tiny_llama", num_blocks=32, block_size=8)
    args = parser.parse_intermixed_args(arguments)
    if args.backend not in KERNELS:
        parser.error(f"--backend is {args.backend}; it must be one of {', '.join(KERNELS)}")
    for path in (args.pages, args.kernel):
        if path and not path.exists():
            parser.error(f"there is no {path}")
    try:
        prompts = prompts_of(args)
        make_pages = pages_in(args.pages or place_of(PAGES))
        kernel = kernel_in(args.kernel or folder_of(), KERNELS[args.backend])
        pages = make_pages(args.num_blocks, args.block_size)
        llm = LLM(args.model, pages=pages, **engine_options(args) | {"backend": kernel})
    except (OSError, ValueError) as error:
        print(error)
        return 1
    return answer(llm, args, prompts)


if __name__ == "__main__":
    print_anything()
    sys.exit(main())
