"""vLLM's own v1 and v2 beside ours, all compiled and run without a GPU.

python -m pa_tutorial.bench.original PATH           # unpacked sources of vLLM
python -m pa_tutorial.bench.original PATH --record  # as notebook 13 shows it
"""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from pa_tutorial.checks.cases import WORKED_EXAMPLE
from pa_tutorial.checks.problem import DecodeProblem
from pa_tutorial.kernels.compiled.original import EXPLAINED, FILE, TYPES, NoOriginal, compare
from pa_tutorial.printing import print_anything
from simt.tables import Table

SIZES = {"num_heads": 4, "num_kv_heads": 1, "head_size": 128, "block_size": 16, "tables": None}
REFERENCE = replace(WORKED_EXAMPLE, seq_lens=(256,), **SIZES)


def on_problem(path: Path, title: str, problem: DecodeProblem) -> Table:
    return compare(path, title, problem.paged("vllm"), problem.expected())


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m pa_tutorial.bench.original", description=__doc__
    )
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("path", type=Path, help="the folder that has csrc")
    parser.add_argument("--record", action="store_true", help="write the tables into original.json")
    given, tables = parser.parse_args(arguments), {}
    try:
        print(on_problem(given.path, "The worked example, float16", WORKED_EXAMPLE))
        for dtype in TYPES:
            name = str(dtype).removeprefix("torch.")
            title = f"4 heads, 256 tokens, head size 128, blocks of 16, {name}"
            table = on_problem(given.path, title, replace(REFERENCE, dtype=dtype))
            print(f"\n{table}")
            tables[str(dtype)] = {"title": title, "columns": table.columns, "rows": table.rows}
        print(EXPLAINED)
    except NoOriginal as why:
        print(why, file=sys.stderr)
        return 1
    if given.record:
        FILE.write_text(json.dumps(tables, indent=1) + "\n", encoding="utf-8", newline="\n")
    return 0


if __name__ == "__main__":
    print_anything()
    sys.exit(main())
