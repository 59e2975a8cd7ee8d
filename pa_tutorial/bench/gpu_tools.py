"""What NVIDIA's tools say of the kernels, where they are installed: counters and errors.

Nsight Compute (ncu) starts this module as a program, which launches once every kernel of
tests/simt_kernels whose cost was worked out by hand (TRAFFIC): requests, sectors, bank conflicts.
The tests hold the simulator to the same numbers. A difference is a finding to look at, not a
failure: the compiler may have joined accesses, or a counter may count something else.
"""

import csv
import os
import re
import shutil
import subprocess
import sys
from glob import glob
from pathlib import Path

import numpy as np

from pa_tutorial.bench.machine import end_group

ROOT = Path(__file__).parents[2]
# Where NVIDIA's installers put their tools, for when they are not on PATH.
PLACES = ("/usr/local/cuda*/bin/", "/usr/local/cuda*/compute-sanitizer/", "/opt/nvidia/nsight-*/*/")
SECONDS = 240  # for each tool
COUNTERS = {
    "global {} requests": "l1tex__t_requests_pipe_lsu_mem_global_op_{}.sum",
    "global {} sectors": "l1tex__t_sectors_pipe_lsu_mem_global_op_{}.sum",
    "shared {} wavefronts": "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_{}.sum",
    "shared {} conflicts": "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_{}.sum",
}
METRICS = {
    counter.format(does): metric.format(short)
    for counter, metric in COUNTERS.items()
    for does, short in (("read", "ld"), ("write", "st"))
}
# How a GPU may serve wide shared accesses (see simt/traffic.py): the end of the columns' names.
RULES = ("", " in parts")
WATCHED = "simulator_gave and (bfloat16 or strided_q or alibi)"  # every dtype, tails, a strided q


def run_tool(name: str, *arguments: str) -> tuple[int, str]:
    """Its exit status, and all that it printed. RuntimeError where it is absent or too slow."""
    found = shutil.which(name) or max((p for at in PLACES for p in glob(at + name)), default=None)
    if found is None:
        raise RuntimeError(f"there is no {name} on PATH, nor in {', '.join(PLACES)}")
    # torch takes each tensor from the driver by itself: otherwise a read behind one tensor is a
    # read of the next, and no tool sees it.
    env = os.environ | {"LC_ALL": "C", "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "encoding": "utf-8"}
    process = subprocess.Popen(
        [found, *arguments], cwd=ROOT, env=env, start_new_session=True, errors="replace", **pipes
    )
    try:
        said, _ = process.communicate(timeout=SECONDS)
    except subprocess.TimeoutExpired:
        end_group(process)  # the tool has a child that has the GPU
        process.communicate()
        raise RuntimeError(f"{name} was not done after {SECONDS} seconds") from None
    return process.returncode, said


def examples() -> tuple[dict, dict]:
    """The kernels of tests/simt_kernels, and what every access of some of them costs."""
    if str(ROOT) not in sys.path:
        sys.path.insert(0, str(ROOT))
    from tests.simt_kernels.example import EXAMPLES, TRAFFIC

    return EXAMPLES, TRAFFIC


def launch_all() -> None:
    """Every kernel of TRAFFIC once, in its order, and no other: the arrays are copied before."""
    from numba import cuda

    kernels, traffic = examples()
    for one in (kernels[name] for name in traffic):
        args = [cuda.to_device(a) if isinstance(a, np.ndarray) else a for a in one.draw()]
        one.kernel[one.grid, one.block, 0, one.shared_bytes](*args)
        cuda.synchronize()


def predicted(accesses: dict, rule: str) -> dict[str, int]:
    """What the GPU should count for a kernel, if it serves wide shared accesses by this rule."""
    counts = dict.fromkeys(METRICS, 0)
    for (_, does), columns in accesses.items():
        if "sectors" in columns:
            counts[f"global {does} requests"] += columns["requests"]
            counts[f"global {does} sectors"] += columns["sectors"]
        else:
            end = rule if f"wavefronts{rule}" in columns else ""
            wavefronts = columns[f"wavefronts{end}"]
            counts[f"shared {does} wavefronts"] += wavefronts
            counts[f"shared {does} conflicts"] += wavefronts - columns[f"ideal{end}"]
    return counts


def counted(said: str, num_launches: int) -> list[dict[str, int]]:
    """For each launch, what of METRICS the GPU has counted, from ncu's CSV."""
    found = csv.DictReader("".join(said.partition('"ID",')[1:]).splitlines())
    rows = [row for row in found if (row["ID"] or "").isdigit()]  # not the line of units
    if len(rows) != num_launches:
        last = " ".join(said.split()[-40:])
        raise RuntimeError(f"ncu has {len(rows)} launches; there must be {num_launches}: {last}")
    digits = [{c: (row.get(m) or "").replace(",", "") for c, m in METRICS.items()} for row in rows]
    return [{c: int(float(n)) for c, n in row.items() if re.match(r"\d", n)} for row in digits]


def counters() -> dict[str, object]:
    """different: kernel -> counter -> the simulator's count by each of RULES, and the GPU's."""
    _, traffic = examples()
    how = ["--csv", "--page", "raw", "--print-units", "base", "--clock-control", "none"]
    how += ["--metrics", ",".join(METRICS.values()), sys.executable, "-m", __name__]
    try:
        found = counted(run_tool("ncu", *how)[1], len(traffic))
    except RuntimeError as why:
        print(f"not compared: {why}")
        return {"not_compared": str(why), "wrong": []}
    different: dict[str, dict] = {}
    for (name, accesses), counts in zip(traffic.items(), found, strict=True):
        by_rule = [predicted(accesses, rule) for rule in RULES]
        for counter, gpu in counts.items():
            expected = [rule[counter] for rule in by_rule]
            if {gpu} != set(expected):
                different.setdefault(name, {})[counter] = {"simulator": expected, "gpu": gpu}
                print(f"{name}, {counter}: simulator {expected}, GPU {gpu}")
    print(f"{len(traffic) - len(different)} of {len(traffic)} kernels: equal counters")
    return {"different": different, "wrong": []}


def sanitizer() -> dict[str, object]:
    """compute-sanitizer over some tests: memory that is not theirs, races in shared memory."""
    found, wrong = {}, []
    pytest = (sys.executable, "-m", "pytest", "-q", "-m", "gpu", "-k", WATCHED)
    for tool in ("memcheck", "racecheck"):
        # Errors of CUDA's functions are not counted: torch tries some to see what there is.
        how = "--tool", tool, "--report-api-errors", "no", "--error-exitcode", "99", *pytest
        try:
            status, said = run_tool("compute-sanitizer", *how)
        except RuntimeError as why:
            found[tool] = f"not run: {why}"
        else:
            summary = " ".join(re.findall(r"^=+ (.*SUMMARY.*)", said, re.MULTILINE))
            found[tool] = f"exit status {status}: {summary or said[-500:]}"
            wrong += [f"{tool}: {found[tool]}"] * (status == 99)
        print(f"{tool}: {found[tool]}")
    return found | {"wrong": wrong}


if __name__ == "__main__":
    launch_all()
