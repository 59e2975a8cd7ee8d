"""Small kernels with known answers, and small kernels with known faults.

Importing this package registers all of them in `example.EXAMPLES` and `example.FAULTS`.
"""

from simt_kernels import (
    arithmetic,
    control,
    faults_data,
    faults_order,
    memory,
    shared,
    traffic,
    warps,
)

RIGHT = (arithmetic, control, memory, shared, traffic, warps)
WRONG = (faults_data, faults_order)
