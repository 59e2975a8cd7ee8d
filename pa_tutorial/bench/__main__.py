"""Measure on this machine's CPU: `python -m pa_tutorial.bench`.

Writes benchmarks/<machine>.json and prints tables. A run of some sections keeps what the file has
of the others. One section, `triton`, is for a GPU; without one it says that it was left out.
"""

import argparse
from pathlib import Path

from pa_tutorial.bench import vllm_peer
from pa_tutorial.bench.compare import comparison
from pa_tutorial.bench.machine import cpu_name, describe_machine
from pa_tutorial.bench.processor import describe_processor
from pa_tutorial.bench.sections import SECTIONS, Section
from pa_tutorial.bench.timing import RESULTS, read_results, write_results

QUICK_ROUNDS = 2


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m pa_tutorial.bench",
        description=__doc__.splitlines()[0],
        epilog="sections: "
        + "; ".join(f"{name}: {section.what}" for name, section in SECTIONS.items()),
    )
    parser.add_argument("--rounds", type=int, default=21, help="measurements a point (median)")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for the JSON file")
    parser.add_argument("--only", nargs="+", choices=SECTIONS, help="these sections alone")
    parser.add_argument(
        "--peer",
        choices=["vllm"],
        help="its kernel beside ours; no section but those of --only",
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help=f"small shapes, {QUICK_ROUNDS} rounds: does it run? needs --out, for it says nothing",
    )
    parser.add_argument(
        "--compare", action="store_true", help="say what got worse since the results committed"
    )
    return parser


def main(command_line: list[str] | None = None) -> None:
    arguments = parser().parse_args(command_line)
    if arguments.quick and arguments.out == RESULTS:
        parser().error("--quick needs --out: its results are no measurements to keep")
    if arguments.rounds < 1:
        parser().error(f"--rounds is {arguments.rounds}; it must be at least 1")
    rounds = QUICK_ROUNDS if arguments.quick else arguments.rounds
    machine, processor = describe_machine(), describe_processor()
    name = f"{cpu_name()} {machine['cores']} cores"
    cache = processor["last_cache_bytes"] / 2**20
    print(f"{machine['cpu']} ({processor['name']}), {machine['cores']} cores, torch ", end="")
    print(f"{machine['torch']}, {cache:.0f} MiB of cache, {' '.join(processor['vectors'])}")
    committed = read_results(name)
    results = read_results(name, arguments.out)
    chosen = {name: SECTIONS[name] for name in arguments.only or SECTIONS}
    if arguments.peer:
        peer = Section("vLLM's CPU kernel, its times divided by ours", vllm_peer.measure)
        chosen = {name: SECTIONS[name] for name in arguments.only or ()} | {arguments.peer: peer}
    for name_of_section, section in chosen.items():
        print(f"\n{name_of_section}: {section.what}", flush=True)
        results[name_of_section] = section.measure(rounds, arguments.quick)
        path = write_results(
            {k: v for k, v in results.items() if k != "machine"} | {"processor": processor},
            name,
            arguments.out,
        )
    if arguments.compare:
        print("\n" + comparison(results, committed))
    print(f"\nwrote {path}")


if __name__ == "__main__":
    main()
