"""Compiled kernels, run without a GPU: PTX, NVIDIA's assembly language, on NumPy.

from pa_tutorial.ptx import run_ptx

report = run_ptx(kernel, grid, block, *args)   # compiled by Numba, then executed
"""

from pa_tutorial.ptx.launching import PtxReport, run_ptx
from pa_tutorial.ptx.machine import PtxFault
from pa_tutorial.ptx.parsing import PtxError, parse
from pa_tutorial.ptx.sources import ptx_by_line

__all__ = ["PtxError", "PtxFault", "PtxReport", "parse", "ptx_by_line", "run_ptx"]
