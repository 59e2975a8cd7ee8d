"""Where the results of `make bench` are that the plots are drawn from."""

from pathlib import Path

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
RESULTS = BENCHMARKS / "amd-epyc-2-cores.json"
STEPS = (
    BENCHMARKS / "intel-r-xeon-r-processor-2-cores.json"
)  # of the CPU kernel, measured since it was rewritten
