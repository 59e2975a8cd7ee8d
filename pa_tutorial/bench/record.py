"""Write down what the simulator computes, for a GPU to be held to: `make refresh`.

A machine with a GPU need not have the time of the simulator: the outputs stand in simulated.npz.
A test holds the file to what the simulator gives now.
"""

import zlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from pa_tutorial.attention.step import DecodeStep
from pa_tutorial.kernels.prepare import v1_backend, v1_vector_backend, v2_backend
from pa_tutorial.kernels.running import as_stored
from pa_tutorial.walk.calls import some_partitions
from pa_tutorial.walk.cases import CASES

FILE = Path(__file__).with_name("simulated.npz")
NAMES = "one_token float16 bfloat16 large_block_numbers mqa head_size_32 head_size_120_float16"
NAMES += " alibi_block_size_8 block_size_32 strided_q_float16 shared_blocks worked_example"
IDS = tuple(f"decode/{name}" for name in NAMES.split())
KERNELS = ("v1", "v1_vector", "v2")
OF_V2 = ("out", "exp_sums", "max_logits", "tmp_out")

Outputs = dict[str, Tensor]  # "out"; of v2 all of OF_V2


def moved(tensor: Tensor, device: str) -> Tensor:
    """A copy on the device with the same strides: also of a view with gaps."""
    memory = tensor.new_empty(0).set_(tensor.untyped_storage()).to(device, copy=True)
    return memory.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())


def inputs_of(case_id: str, device: str = "cpu") -> dict[str, object]:
    return {
        name: moved(value, device) if isinstance(value, Tensor) else value
        for name, value in vars(CASES[case_id].paged("vllm")).items()
    }


def outputs(case_id: str, kernel: str, device: str = "cpu") -> Outputs:
    """What one kernel writes for one case, by name; on the CPU: in the simulator."""
    step = DecodeStep(**inputs_of(case_id, device))
    if kernel != "v2":
        backend = v1_vector_backend if kernel == "v1_vector" else v1_backend
        return {"out": backend.prepare(step).run().cpu()}
    prepared = v2_backend.prepare(step, partition_size=some_partitions(CASES[case_id]))
    prepared.run()
    return {name: getattr(prepared, name).cpu() for name in OF_V2}


def checksum(case_id: str) -> int:
    """Of the numbers that the kernels read: were others drawn, their outputs would differ."""
    tensors = [value for value in inputs_of(case_id).values() if isinstance(value, Tensor)]
    return zlib.crc32(b"".join(as_stored(t).contiguous().numpy().tobytes() for t in tensors))


def recorded(case_id: str, kernel: str, arrays: Mapping[str, np.ndarray]) -> Outputs:
    """What the file has of one case and kernel. v1 has the same bits, whatever its loads are: they
    are kept once.

    Raises ValueError if this machine draws other inputs than those of the file.
    """
    if int(arrays[f"{case_id} inputs"]) != checksum(case_id):
        raise ValueError(f"the inputs of {case_id} are not those of {FILE.name}: record it anew")
    found = {}
    for name in OF_V2 if kernel == "v2" else OF_V2[:1]:
        tensor = torch.from_numpy(arrays[f"{case_id} {kernel.removesuffix('_vector')} {name}"])
        bits = tensor.dtype == torch.uint16
        found[name] = tensor.view(torch.bfloat16) if bits else tensor
    return found


def load() -> dict[str, np.ndarray]:
    with np.load(FILE) as arrays:
        return dict(arrays)


def as_arrays(case_id: str) -> dict[str, np.ndarray]:
    arrays = {f"{case_id} inputs": np.array(checksum(case_id), np.uint32)}
    for kernel in ("v1_vector", "v2"):
        for name, tensor in outputs(case_id, kernel).items():
            key = f"{case_id} {kernel.removesuffix('_vector')} {name}"
            arrays[key] = as_stored(tensor).numpy()
    return arrays


def record() -> None:
    """Write simulated.npz."""
    arrays = {}
    for case_id in IDS:
        arrays |= as_arrays(case_id)
    np.savez_compressed(FILE, **arrays)
