"""Compiled kernels, run without a GPU: PTX, NVIDIA's assembly language, on NumPy.

from simt.ptx import run_ptx

report = run_ptx(kernel, grid, block, *args)   # compiled by Numba, then executed
"""

from simt.ptx.launching import PtxReport, run_ptx
from simt.ptx.machine import PtxFault
from simt.ptx.parsing import PtxError, parse
from simt.ptx.sources import ptx_by_line

__all__ = ["PtxError", "PtxFault", "PtxReport", "parse", "ptx_by_line", "run_ptx"]
