"""Small kernels with known answers, and small kernels with known faults.

Importing this package registers all of them in `example.EXAMPLES` and `example.FAULTS`.
"""

from simt_kernels import (
    arithmetic,
    atomics,
    calls,
    casts,
    clean,
    clean_sync,
    control,
    faults_init,
    faults_memory,
    faults_race,
    faults_sync,
    functions,
    memory,
    puzzles,
    shared,
    traffic,
    variables,
    vectors,
    votes,
    warps,
)

RIGHT = (arithmetic, atomics, calls, casts, clean, clean_sync, control, functions, memory, puzzles)
RIGHT += (shared, traffic, variables, vectors, votes, warps)
WRONG = (faults_init, faults_memory, faults_race, faults_sync)
