"""Check the kernels that you saved: `python -m pa_tutorial.exercises cuda_v1 my_kernel`."""

import argparse
import sys
from pathlib import Path

from pa_tutorial.checks import check
from pa_tutorial.exercises.my_kernel import KERNELS, load
from pa_tutorial.printing import print_anything

INTERRUPTED = 130  # the shell's exit code for Ctrl-C


def main(arguments: list[str] | None = None) -> int:
    """Check a kernel of a reader's files as a stage, and print the result.

    Returns 1 if it is wrong or the files can't be used; INTERRUPTED after Ctrl-C.
    """
    parser = argparse.ArgumentParser(
        prog="python -m pa_tutorial.exercises",
        description="Check a kernel that you saved in the notebooks in place of ours.",
    )
    parser.add_argument("stage", choices=KERNELS, help=f"one of {', '.join(KERNELS)}")
    parser.add_argument("folder", type=Path, help="my_kernel")
    parser.add_argument("--short", action="store_true", help="a few cases instead of all")
    parser.add_argument("--table", action="store_true", help="show every case, even if all pass")
    args = parser.parse_args(arguments)
    try:
        kernel = load(args.folder, KERNELS[args.stage])
        result = check(args.stage, kernel, short=args.short, raises=False)
    except ValueError as error:  # of the files
        print(f"{args.stage}: {error}")
        return 1
    except KeyboardInterrupt:
        print(f"{args.stage}: interrupted, no result")
        return INTERRUPTED
    print(result.table() if args.table else result, flush=True)
    return 0 if result.ok else 1


if __name__ == "__main__":
    print_anything()
    sys.exit(main())
