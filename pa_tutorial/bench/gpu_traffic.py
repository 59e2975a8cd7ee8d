"""Requests, sectors and bank conflicts: the simulator's counts beside those of a GPU.

The GPU's come from Nsight Compute (`ncu`). It starts this module as a program, which launches
once every kernel of tests/simt_kernels whose cost was worked out by hand (TRAFFIC). The tests hold
the simulator to the same numbers, so nothing is simulated here: Numba and ncu are enough.

A difference is a finding to look at, not a failure: the model may be wrong, the compiler may have
joined or moved accesses, or a counter may count something else.
"""

import csv
import os
import re
import shutil
import subprocess
import sys
from glob import glob

import numpy as np

from pa_tutorial.bench.gpu_kernels import TESTS, examples

METRICS = {
    "global read requests": "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum",
    "global write requests": "l1tex__t_requests_pipe_lsu_mem_global_op_st.sum",
    "global read sectors": "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum",
    "global write sectors": "l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum",
    "shared read wavefronts": "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum",
    "shared write wavefronts": "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_st.sum",
    "shared read conflicts": "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum",
    "shared write conflicts": "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_st.sum",
}
# How wide shared accesses are served (see simt/traffic.py) -> end of the names of the columns.
RULES = {"at once": "", "in parts": " in parts"}
# Where NVIDIA's installers put ncu, for when it is not on PATH.
PLACES = ("/usr/local/cuda*/bin/ncu", "/opt/nvidia/nsight-compute/*/ncu")

Accesses = dict[tuple[str, str], dict[str, int]]  # (expression, "read" or "write") -> its columns
Counts = dict[str, int | None]  # as METRICS -> count; None where the GPU has no such counter


class NotCompared(Exception):
    """Nothing was counted on this machine; says why."""


def recorded() -> dict[str, Accesses]:
    """TRAFFIC: what every access of a kernel costs, as the simulator counts it."""
    examples()  # they register themselves
    from simt_kernels.example import TRAFFIC

    return TRAFFIC


def predicted(accesses: Accesses, rule: str) -> Counts:
    """What the GPU should count for a kernel, if it serves wide shared accesses by this rule."""
    counts = dict.fromkeys(METRICS, 0)
    for (_, does), columns in accesses.items():
        if "sectors" in columns:
            counts[f"global {does} requests"] += columns["requests"]
            counts[f"global {does} sectors"] += columns["sectors"]
        else:
            end = RULES[rule] if f"wavefronts{RULES[rule]}" in columns else ""
            wavefronts = columns[f"wavefronts{end}"]
            counts[f"shared {does} wavefronts"] += wavefronts
            counts[f"shared {does} conflicts"] += wavefronts - columns[f"ideal{end}"]
    return counts


def launch_on_the_gpu(example: object) -> None:
    """One launch, and no other kernel: the arrays are copied before."""
    from numba import cuda

    args = [cuda.to_device(a) if isinstance(a, np.ndarray) else a for a in example.draw()]
    example.kernel[example.grid, example.block, 0, example.shared_bytes](*args)
    cuda.synchronize()


def launch_all() -> None:
    """Every kernel of TRAFFIC once, in its order."""
    for name in recorded():
        launch_on_the_gpu(examples()[name])


# Nsight Compute ------------------------------------------------------------------------------


def find_ncu() -> str:
    """The ncu on PATH, else the newest in the first of PLACES that has one."""
    if on_path := shutil.which("ncu"):
        return on_path
    for place in PLACES:
        if found := list(filter(shutil.which, glob(place))):
            return max(found, key=lambda path: list(map(int, re.findall(r"\d+", path))))
    raise NotCompared(f"there is no ncu on PATH, nor at {' or '.join(PLACES)}")


def read_counters(seconds: float) -> dict[str, Counts]:
    """Kernel -> what the GPU counted. Raises NotCompared where ncu is missing or fails."""
    command = [find_ncu(), "--csv", "--page", "raw", "--print-units", "base"]
    command += ["--clock-control", "none", "--metrics", ",".join(METRICS.values())]
    command += [sys.executable, "-m", __name__]
    how = {"capture_output": True, "encoding": "utf-8", "errors": "replace", "timeout": seconds}
    how["env"] = os.environ | {"LC_ALL": "C"}  # elsewhere 1.024 may be a thousand
    try:
        done = subprocess.run(command, cwd=TESTS.parent, **how)
    except subprocess.TimeoutExpired as error:
        raise NotCompared(f"{command[0]} was not done after {seconds:.3g} seconds") from error
    lines = done.stdout.splitlines()
    header = [i for i, line in enumerate(lines) if line.startswith('"ID",')]
    if done.returncode or not header:
        said = _complaint(lines + done.stderr.splitlines())
        raise NotCompared(f"{command[0]} ended with {done.returncode} and no counters: {said}")
    return counted(lines[header[0] :])


def _complaint(lines: list[str]) -> str:
    """What ncu calls an error, and the last that was printed."""
    said = [line.strip() for line in lines if line.strip()]
    errors = [line for line in said if re.search("==ERROR==|LibraryNotLoaded", line)]
    return " ".join(dict.fromkeys(errors + said[-3:]))  # Numba's errors end in three lines


def counted(lines: list[str]) -> dict[str, Counts]:
    """Kernel -> counts, from ncu's CSV: a header, a line of units, a row for each launch."""
    launches = [row for row in csv.DictReader(lines) if row["ID"].isdigit()]
    names = list(recorded())
    if len(launches) != len(names):
        raise NotCompared(f"ncu has {len(launches)} launches; there must be {len(names)}")
    counts = {}
    for name, row in zip(names, launches, strict=True):
        if name not in row["Kernel Name"]:
            raise NotCompared(f"launch {row['ID']} is {row['Kernel Name']}; it must be {name}")
        counts[name] = {counter: _count(row.get(metric)) for counter, metric in METRICS.items()}
    return counts


def _count(cell: str | None) -> int | None:
    """1024 of "1,024"; None of "n/a", or where there is no such column."""
    digits = (cell or "").replace(",", "")
    return int(float(digits)) if re.fullmatch(r"\d+(\.\d*)?", digits) else None


def side_by_side(found: dict[str, Counts]) -> dict[str, object]:
    """Prints each difference, and returns what a reader of the JSON file needs.

    equal      how many kernels agree in every counter
    different  the names of the others
    kernels    name -> counter -> the count, where both agree (left out if it is 0); else the
               simulator's and the GPU's; both rules' and the GPU's, where the rules differ
    rule_of_wide_shared_accesses
               there: name -> counter -> the rule that the GPU agrees with, or "neither"
    """
    kernels: dict[str, dict] = {}
    different, rules = [], {}
    for name, accesses in recorded().items():
        by_rule = {rule: predicted(accesses, rule) for rule in RULES}
        kernels[name] = {}
        for counter, gpu in found[name].items():
            expected = {rule: counts[counter] for rule, counts in by_rule.items()}
            agrees = [rule for rule, count in expected.items() if count == gpu]
            if len(set(expected.values())) > 1:
                rules.setdefault(name, {})[counter] = agrees[0] if agrees else "neither"
            else:
                expected = {"simulator": expected["at once"]}
            if not agrees and name not in different:
                different.append(name)
            if len(agrees) < len(RULES):
                kernels[name][counter] = expected | {"gpu": gpu}
                print(f"  {name}, {counter}: {_in_words(kernels[name][counter])}")
            elif gpu:
                kernels[name][counter] = gpu
    for name, counters in rules.items():
        for counter, rule in counters.items():
            print(f"  {name}, {counter}: the GPU's rule of wide accesses is: {rule}")
    equal = len(kernels) - len(different)
    print(f"  {equal} kernels: equal counters; {len(different)} differ")
    result = {"equal": equal, "different": different, "kernels": kernels}
    return result | {"rule_of_wide_shared_accesses": rules}


def _in_words(counts: Counts) -> str:
    return ", ".join(
        f"{who} {'has no such counter' if count is None else format(count, ',')}"
        for who, count in counts.items()
    )


def compare(seconds: float) -> dict[str, object]:
    """What side_by_side returns; {"not_compared": why} where nothing can be counted."""
    try:
        return side_by_side(read_counters(seconds))
    except NotCompared as why:
        print(f"  Not compared: {why}")
        return {"not_compared": str(why)}


if __name__ == "__main__":
    launch_all()
