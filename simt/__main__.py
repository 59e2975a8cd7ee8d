"""Run a Numba CUDA program without a GPU: python -m simt script.py [arguments].

The program can be a notebook, too.
"""

import argparse
import linecache
import os
import sys
import traceback
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from importlib.util import decode_source, find_spec
from mmap import mmap
from pathlib import Path
from threading import Event, Thread
from time import perf_counter

import numpy as np

from simt import (
    CHECKS,
    Finding,
    Report,
    SimtError,
    global_traffic,
    instructions,
    shared_traffic,
)
from simt.device_array import DeviceArray
from simt.host import SUCCESSOR, simulated
from simt.launch import launch
from simt.launch_options import Size
from simt.machine import ORDERS
from simt.names import function_behind, refuse_numbas_simulator
from simt.printing import print_anything
from simt.programs import INTERRUPTED, Refused, cells_of, run_script
from simt.source import spoken

FOUND, COULD_NOT_RUN = 1, 2  # exit codes
SECONDS_UNTIL_PROGRESS = 5.0


@dataclass
class Kernel:
    """What the launches of one kernel found and cost."""

    name: str
    launches: int = 0
    seconds: float = 0.0
    findings: dict[str, Finding] = field(default_factory=dict)  # by their words
    error: Exception | None = None  # why a launch could not run
    traced: Report | None = None  # of the first launch

    def __str__(self) -> str:
        times = "1 launch" if self.launches == 1 else f"{self.launches:,} launches"
        lines = [f"{self.name}: {times}, {self.seconds:.1f} s in the simulator"]
        if self.traced and self.traced.trace and len(self.traced.trace):
            lines.append(f"  thread block 0 of the first: {cost(self.traced)}")
        lines += [f"  {line}" for words in self.findings for line in words.splitlines()]
        if self.error:
            lines.append(f"  could not run: {str(self.error).splitlines()[0]}")
        return "\n".join(lines)


def cost(report: Report) -> str:
    """What a traced thread block cost, in a line."""
    traffic, shared = global_traffic(report.trace), shared_traffic(report.trace)
    return (
        f"{instructions(report.trace).total('instructions'):,} warp instructions that access "
        f"memory, shuffle, vote or wait; {traffic.total('transactions'):,} global transactions of "
        f"{traffic.total('sectors'):,} sectors; {shared.total('wavefronts'):,} wavefronts of "
        "shared memory"
    )


class Session:
    """Launches kernels for a program and remembers what they found.

    page     where to save a page; the first launch with a finding then runs again, with its thread
             blocks traced
    options  of every launch, unless the program gives its own to `simulate`
    """

    def __init__(self, page: Path | None, **options: object) -> None:
        self.page, self.options = page, options
        self.kernels: dict[Callable, Kernel] = {}
        self.first: Report | None = None  # of the launch that was run again
        # A byte that a process which the program forks shares with this one: 1 after a finding.
        self.process, self.elsewhere = os.getpid(), mmap(-1, 1)

    def __call__(
        self, kernel: Callable, grid: Size, block: Size, *args: object, **options: object
    ) -> Report:
        """Takes the place of `launch`, but collects all findings before it raises the first."""
        collects = options.pop("collect", False)
        options = {**self.options, **options, "collect": True}
        with self.counted(kernel) as one:
            if one.launches == 1:
                options.setdefault("trace", 0)
            before = [_copied(a) if self.page else a for a in args]
            what = f"launch {one.launches:,} of {one.name}: grid {grid}, block {block}"
            with said_if_long(what):
                report = launch(kernel, grid, block, *args, **options)
        one.traced = one.traced or report
        found = {f"{each}\n  in {spoken(each.site.file)}": each for each in report.findings}
        if found and os.getpid() != self.process:
            self.elsewhere[0] = 1
            print(*(found.keys() - one.findings.keys()), sep="\n", file=sys.stderr, flush=True)
        one.findings |= found
        if report.findings and self.page and not self.first:
            finding = report.findings[0]
            options["trace"] = list({finding.block, finding.other_block or finding.block})
            self.first = launch(kernel, grid, block, *before, **options)
        if report.findings and not collects:
            raise SimtError(report.findings[0])
        return report

    @contextmanager
    def counted(self, kernel: Callable) -> Iterator[Kernel]:
        """Around a launch: counts it, times it, and remembers whether it could run."""
        one = self.kernels.setdefault(kernel, Kernel(function_behind(kernel).__name__))
        one.launches += 1
        start = perf_counter()
        try:
            yield one
        except Exception as error:
            one.error = one.error or error
            raise
        finally:
            one.seconds += perf_counter() - start


def _copied(argument: object) -> object:
    return np.array(argument) if isinstance(argument, np.ndarray | DeviceArray) else argument


@contextmanager
def said_if_long(what: str) -> Iterator[None]:
    """Say on stderr what is running, after 5 seconds and then at longer intervals."""
    done = Event()

    def watch() -> None:
        seconds = start = SECONDS_UNTIL_PROGRESS
        while not done.wait(seconds):
            print(f"… {what} (running for {start:.0f} s)", file=sys.stderr, flush=True)
            seconds *= 2
            start += seconds

    Thread(target=watch, daemon=True).start()
    try:
        yield
    finally:
        done.set()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a program with every launch in the simulator, and print what its kernels found and cost.

    Returns FOUND if there is a finding; else COULD_NOT_RUN if the program or one of its kernels
    could not run, or no kernel was launched; else the program's exit code. After Ctrl-C,
    INTERRUPTED.
    """
    parser = argument_parser()
    given = parser.parse_args(arguments)
    try:
        run = program(given.script, given.arguments)
        refuse_numbas_simulator()
    except (Refused, RuntimeError) as error:
        parser.exit(COULD_NOT_RUN, f"{parser.prog}: error: {error}\n")
    except (SyntaxError, ValueError) as error:
        traceback.print_exception(error, limit=0)
        return COULD_NOT_RUN
    checks = () if given.no_check else CHECKS
    html = Path(given.html).absolute() if given.html else None  # the program may change folders
    session = Session(html, order=given.order, checks=checks)
    if find_spec(SUCCESSOR):
        import_module(f"{SUCCESSOR}.cuda")  # so that its names, too, can be replaced
    shown = sys.stdout, sys.stderr
    with simulated(launcher=session, collect=True):
        status = run()
    sys.stdout, sys.stderr = shown  # the program may have replaced them
    return status if status == INTERRUPTED else report_of(session, given, status)


def program(path: str, arguments: Sequence[str]) -> Callable[[], int | None]:
    """What runs a program, and returns its exit code, or None if it fails.

    Raises Refused, or what Python raises for a script that isn't Python.
    """
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise Refused(f"{path}: {error.strerror}") from None
    if not path.endswith(".ipynb"):
        code = compile(content, path, "exec")
        lines = decode_source(content).splitlines(keepends=True)
        linecache.cache[path] = len(content), None, lines, path  # to be read from any folder
        return partial(run_script, code, path, arguments)
    cells = cells_of(path, content)
    try:
        from simt.notebooks import run_notebook
    except ImportError as error:
        raise Refused(
            f"{path}: IPython, which runs the cells of a notebook, can't be imported ({error}); "
            "install it with `pip install ipython`"
        ) from None
    return partial(run_notebook, cells, path, arguments)


def argument_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m simt",
        description="Run a Numba CUDA program without a GPU, check every access of its kernels, "
        "and report what was found.",
        epilog="Exits with 1 if there is a finding; otherwise with 2 if the program or a kernel "
        "could not run or no kernel was launched, or else with the program's own exit code.",
    )
    parser.add_argument("script", help="the program, unchanged; a notebook needs IPython")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="the program's own arguments")
    parser.add_argument("--no-check", action="store_true", help="only compute, which is faster")
    parser.add_argument("--trace", metavar="KERNEL", help="show what each access of it costs")
    parser.add_argument(
        "--html", metavar="FILE", type=page, help="save the first finding as a page to look at"
    )
    parser.add_argument(
        "--order", default="together", choices=ORDERS, help="of the warps; default: together"
    )
    return parser


def page(file: str) -> str:
    """The file for --html, if a page can be made and saved there."""
    if find_spec("matplotlib") is None:
        raise argparse.ArgumentTypeError("needs Matplotlib: pip install 'numba-simt[pictures]'")
    there = Path(file)
    if there.is_dir() or not there.parent.is_dir():
        raise argparse.ArgumentTypeError(f"is {file}; it must be a file, in a folder that exists")
    return file


def report_of(session: Session, given: argparse.Namespace, status: int | None) -> int:
    """Print what the kernels found and cost. Returns the exit code.

    status  what the program ended with; None: an error
    """
    kernels, elsewhere = session.kernels.values(), bool(session.elsewhere[0])
    if not kernels and not elsewhere:
        if status is not None:
            print(f"{given.script} launched no kernel.", file=sys.stderr)
        return COULD_NOT_RUN
    print("\n".join(["", *map(str, kernels)]))
    is_traced = not given.trace or print_traffic(kernels, given.trace)
    found = sum(len(one.findings) for one in kernels)
    failed = [one.name for one in kernels if one.error]
    print(f"\n{given.script}: {verdict(found, elsewhere, failed, given.no_check, status)}")
    if session.first:
        from simt.microscope import microscope  # loads matplotlib

        microscope(session.first).save_html(session.page)
        print(f"{given.html} shows the first.")
    if found or elsewhere:
        return FOUND
    return COULD_NOT_RUN if failed or status is None or not is_traced else status


def print_traffic(kernels: Collection[Kernel], name: str) -> bool:
    """What each access of a kernel costs. False: there is no kernel of this name."""
    chosen = [one for one in kernels if one.name == name and one.traced]
    for table in (global_traffic, shared_traffic) if chosen else ():
        print(f"\n{table(chosen[0].traced.trace)}")
    if not chosen:
        names = ", ".join(one.name for one in kernels if one.traced)
        print(f"--trace {name}: the kernels are {names}", file=sys.stderr)
    return bool(chosen)


def verdict(
    found: int, elsewhere: bool, failed: list[str], unchecked: bool, status: int | None
) -> str:
    """The last line. It says "no findings" only if all has run and was checked.

    elsewhere  whether there are findings in processes that the program forked
    status     the program's own exit code; None if it raised
    """
    parts = [f"{found} finding{'s' if found > 1 else ''}"] if found else []
    parts += ["findings in another process"] * elsewhere
    if failed:
        parts.append(f"{', '.join(failed)} could not run")
    elif status is None:
        parts.append("the program ended with an error")
    parts = parts or ["nothing was checked" if unchecked else "no findings"]
    return "; ".join([*parts, f"the program's exit code is {status}"] if status else parts)


if __name__ == "__main__":
    print_anything()
    sys.exit(main())
