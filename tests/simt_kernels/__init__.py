"""Small kernels with known answers, and small kernels with known faults."""

from simt_kernels import (
    clean,
    clean_sync,
    faults_init,
    faults_memory,
    faults_race,
    faults_sync,
)

ALL = (clean, clean_sync, faults_init, faults_memory, faults_race, faults_sync)
