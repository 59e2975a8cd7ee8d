"""What of the processor decides how fast attention is: its last cache, vectors and threads."""

from pathlib import Path

import numba
import torch
from llvmlite.binding import get_host_cpu_features, get_host_cpu_name

LEAST_CACHE_BYTES = 32 * 2**20  # where the system does not tell how large the last cache is


def last_cache_bytes() -> int:
    """Size of the largest cache of the first core, at least LEAST_CACHE_BYTES."""
    sizes = [LEAST_CACHE_BYTES]
    for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        size = path.read_text(encoding="utf-8").strip()  # as in 32K
        sizes.append(int(size[:-1]) * {"K": 2**10, "M": 2**20}[size[-1]])
    return max(sizes)


# Of what processors can do with vectors, what concerns float32 and 16-bit floats.
VECTORS = ("avx", "avx2", "fma", "f16c", "avx512f", "avx512bf16", "avx512fp16", "neon", "sve")


def describe_processor() -> dict[str, object]:
    """Beside describe_machine: what the compiler knows of the processor."""
    features = get_host_cpu_features()
    return {
        "name": get_host_cpu_name(),
        "vectors": [name for name in VECTORS if features.get(name)],
        "last_cache_bytes": last_cache_bytes(),
        "numba_threads": numba.get_num_threads(),
        "torch_threads": torch.get_num_threads(),
    }
