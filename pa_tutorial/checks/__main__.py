"""Verify stages from the command line: `python -m pa_tutorial.checks kv_cache`."""

import argparse
import sys

from pa_tutorial.checks import OTHERS, attempt, has_short_check
from pa_tutorial.walk.cases import SHORT_CHECK
from pa_tutorial.walk.ladder import STAGES

INTERRUPTED = 130  # what a shell makes of Ctrl-C


def main(arguments: list[str] | None = None) -> int:
    """Print each result as soon as it is there.

    Returns 1 if a stage is wrong, or was asked for and cannot run here; INTERRUPTED after Ctrl-C.
    """
    parser = argparse.ArgumentParser(
        prog="python -m pa_tutorial.checks",
        description="Run stages over their cases; exits with 1 if one is wrong or, though named, "
        "cannot run here.",
        epilog="\n".join(
            f"{stage.name:16} {stage.new} ({stage.where})" for stage in STAGES.values()
        )
        + f"\n{'block_manager':16} allocator, block tables, prefix cache, swap (no stage)"
        + f"\n{'engine':16} scheduler, batch, runner: requests served together (no stage)",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "stages",
        nargs="*",
        metavar="stage",
        help="one of those below; none means all",
    )
    parser.add_argument(
        "--short",
        action="store_true",
        help=f"at most {len(SHORT_CHECK)} cases of a stage that reads blocks; no kept mistake in a "
        "kernel passes all of them",
    )
    parser.add_argument("--table", action="store_true", help="every case, also where all pass")
    known = [*STAGES, *OTHERS]
    args = parser.parse_args(arguments)
    stages = args.stages or known
    if unknown := [name for name in stages if name not in known]:
        parser.error(f"stage is {unknown[0]!r}; it must be one of {', '.join(known)}")
    right = True
    for name in stages:
        try:
            if why := name in STAGES and STAGES[name].why_absent():
                print(f"{name}: not run. {why}", flush=True)
                right &= not args.stages  # it was asked for
                continue
            result = attempt(name, short=args.short and has_short_check(name))
        except KeyboardInterrupt:
            print(f"{name}: interrupted, no result")
            return INTERRUPTED
        print(result.table() if args.table else result, flush=True)
        right &= result.ok
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
