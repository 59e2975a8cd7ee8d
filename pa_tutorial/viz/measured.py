"""Where the results of `make bench` are that the plots are drawn from."""

from pathlib import Path

RESULTS = Path(__file__).parents[2] / "benchmarks" / "amd-epyc-2-cores.json"
