"""Small kernels with known answers, and small kernels with known faults.

Importing this package registers all of them in `example.EXAMPLES` and `example.FAULTS`.
"""

from tests.simt.kernels import (
    arithmetic,
    control,
    faults,
    fences,
    grids,
    language,
    memory,
    records,
    shared,
    traffic,
    warps,
)

REGISTERED = (
    arithmetic,
    control,
    faults,
    fences,
    grids,
    language,
    memory,
    records,
    shared,
    traffic,
    warps,
)
