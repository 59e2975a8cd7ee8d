"""Verify stages from the command line: `python -m pa_tutorial.checks kv_cache`."""

import argparse
import sys
from pathlib import Path

from pa_tutorial.checks import OTHERS, check, has_short_check
from pa_tutorial.checks.cases import SHORT_CHECK
from pa_tutorial.checks.ladder import STAGES
from pa_tutorial.checks.pages_file import check_file, in_a_line
from pa_tutorial.printing import print_anything

INTERRUPTED = 130  # the shell's exit code for Ctrl-C


def main(arguments: list[str] | None = None) -> int:
    """Run the checks, and print each result as soon as it is known.

    Returns 1 if a stage is wrong, or was named and can't run here; INTERRUPTED after Ctrl-C.
    """
    parser = argparse.ArgumentParser(
        prog="python -m pa_tutorial.checks",
        description="Run stages over their cases. The exit status is 1 if a stage is wrong,\n"
        "or if a stage that you named can't run here.",
        epilog="\n".join(
            f"{stage.name:16} {stage.new} ({stage.where})" for stage in STAGES.values()
        )
        + f"\n{'block_manager':16} who has which block (not a stage); after it, a file may be named"
        + f"\n{'':16} that has a class Pages, such as your my_pages.py"
        + f"\n{'prefix_cache':16} known blocks, swap, sliding windows (not a stage)"
        + f"\n{'engine':16} scheduler, batch, runner: requests served together (not a stage)",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "stages",
        nargs="*",
        metavar="stage",
        help="stages from the list below (default: all)",
    )
    parser.add_argument(
        "--short",
        action="store_true",
        help=f"of a stage that reads blocks, run only {len(SHORT_CHECK)} cases, or those of them "
        "that it can read; every kernel mistake in tests/wrong fails at least one",
    )
    parser.add_argument("--table", action="store_true", help="show every case, even if all pass")
    known = [*STAGES, *OTHERS]
    args = parser.parse_args(arguments)
    stages = args.stages or known
    if stages[0] == "block_manager" and len(stages) == 2 and stages[1] not in known:
        try:
            return 0 if check_file(Path(stages[1])) else 1
        except KeyboardInterrupt as interrupt:
            print(f"{stages[1]}: interrupted, no result; {in_a_line(interrupt)}")
            return INTERRUPTED
    if unknown := [name for name in stages if name not in known]:
        parser.error(f"stage is {unknown[0]!r}; it must be one of {', '.join(known)}")
    right = True
    for name in stages:
        try:
            if why := name in STAGES and STAGES[name].why_absent():
                print(f"{name}: not run. {why}", flush=True)
                right &= not args.stages  # wrong if it was named
                continue
            short = args.short and has_short_check(name)
            result = check(name, short=short, raises=False)
        except KeyboardInterrupt:
            print(f"{name}: interrupted, no result")
            return INTERRUPTED
        print(result.table() if args.table else result, flush=True)
        right &= result.ok
    return 0 if right else 1


if __name__ == "__main__":
    print_anything()
    sys.exit(main())
