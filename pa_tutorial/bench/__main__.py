"""Measure on this machine's CPU: `python -m pa_tutorial.bench`.

Writes benchmarks/<machine>.json and prints tables. A run of some sections keeps the file's results
of the others. `--peer vllm` is a section that runs only on request.
"""

import argparse
from pathlib import Path

from pa_tutorial.bench import cpu_decode, engine_bench, vllm_peer
from pa_tutorial.bench.this_machine import cpu_name, describe_machine, processor_facts
from pa_tutorial.bench.timing import RESULTS, read_results, write_results
from pa_tutorial.printing import print_anything

# name -> what it measures; and rounds -> what goes into the JSON file under that name
SECTIONS = {
    "decode": ("attention when decoding: kernel, peers and the read bound", cpu_decode.measure),
    "noise": ("all times of one call, repeated many times", cpu_decode.measure_noise),
    "engine": ("the serving engine, with and without paging", engine_bench.measure),
}
PEERS = {"vllm": ("vLLM's CPU kernel next to ours, on the same steps", vllm_peer.measure)}


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m pa_tutorial.bench",
        description=__doc__.splitlines()[0],
        epilog="sections: " + "; ".join(f"{name}: {what}" for name, (what, _) in SECTIONS.items()),
    )
    parser.add_argument("--rounds", type=int, default=21, help="rounds per point, for a median")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for the JSON file")
    parser.add_argument("--only", nargs="+", choices=SECTIONS, help="run only these sections")
    parser.add_argument(
        "--peer", choices=PEERS, help="its CPU kernel next to ours; other sections only with --only"
    )
    return parser


def main(command_line: list[str] | None = None) -> None:
    arguments = parser().parse_args(command_line)
    if arguments.rounds < 1:
        parser().error(f"--rounds is {arguments.rounds}; it must be at least 1")
    machine, processor = describe_machine(), processor_facts()
    name = f"{cpu_name()} {machine['cores']} cores"
    print(f"{machine['cpu']} ({processor['name']}), {machine['cores']} cores, torch ", end="")
    print(f"{machine['torch']}, {processor['last_cache_bytes'] / 2**20:.0f} MiB of cache")
    results = read_results(name, arguments.out)
    chosen = arguments.only or ([] if arguments.peer else SECTIONS)
    for section in [*chosen, *filter(None, [arguments.peer])]:
        what, measure = (SECTIONS | PEERS)[section]
        print(f"\n{section}: {what}", flush=True)
        results |= {"machine": machine, "processor": processor}
        results[section] = measure(arguments.rounds)
        path = write_results(results, name, arguments.out)
    print(f"\nwrote {path}")


if __name__ == "__main__":
    print_anything()
    main()
