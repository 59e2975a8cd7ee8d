"""Describe this machine, for the first notebook and for every measurement."""

import contextlib
import os
import platform
from importlib import metadata
from pathlib import Path

import torch

LEAST_CACHE_BYTES = 32 * 2**20  # also if the system doesn't say how large the last cache is
# The vector instructions that matter for float32 and 16-bit floats.
VECTORS = ("avx", "avx2", "fma", "f16c", "avx512f", "avx512bf16", "avx512fp16", "neon", "sve")


def cpu_name() -> str:
    """The processor's model name, if the system knows it."""
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8") as lines:
        for line in lines:
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    # Not Linux: the platform module knows less.
    return platform.processor() or platform.machine()


def package_version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def describe_machine() -> dict[str, str | int | None]:
    """Python, packages, processor and GPU; None for what is missing."""
    return {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "torch": torch.__version__,
        "numba": package_version("numba"),
        "numba-cuda": package_version("numba-cuda"),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
    }


def last_cache_bytes() -> int:
    """Size of the first core's largest cache, at least LEAST_CACHE_BYTES."""
    sizes = [LEAST_CACHE_BYTES]
    for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        size = path.read_text(encoding="utf-8").strip()  # as in 32K
        sizes.append(int(size[:-1]) * {"K": 2**10, "M": 2**20}[size[-1]])
    return max(sizes)


def processor_facts() -> dict[str, object]:
    """What the compiler knows about the processor, and the number of threads."""
    import numba
    from llvmlite import binding

    features = binding.get_host_cpu_features()
    return {
        "name": binding.get_host_cpu_name(),
        "vectors": [name for name in VECTORS if features.get(name)],
        "last_cache_bytes": last_cache_bytes(),
        "numba_threads": numba.get_num_threads(),
        "torch_threads": torch.get_num_threads(),
    }


def report() -> str:
    """describe_machine as lines, plus what a missing GPU means for the walk."""
    machine = describe_machine()
    lines = [
        f"{name:12} {'not found' if value is None else value}" for name, value in machine.items()
    ]
    if machine["gpu"] is None:
        lines += ["", "No GPU found, and none is needed: this walk runs without one."]
    return "\n".join(lines)
