"""Write down what the simulator computes, for a GPU to be held to: `make refresh`.

A machine with a GPU need not have the simulator's dependencies, nor its time: the outputs stand
in simulated.npz. A test holds the file to what the simulator gives now.
"""

import zlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from pa_tutorial.bench.gpu_ladder import moved
from pa_tutorial.kernels.launch import prepare_v1, prepare_v2
from pa_tutorial.kernels.loads import element_loads
from pa_tutorial.kernels.running import as_stored
from pa_tutorial.kernels.vectors import vector_loads
from pa_tutorial.walk.calls import some_partitions
from pa_tutorial.walk.cases import CASES

FILE = Path(__file__).with_name("simulated.npz")
NAMES = (
    "one_token",
    "float16",
    "bfloat16",
    "large_block_numbers",
    "mqa",
    "head_size_32",
    "head_size_120_float16",
    "alibi_block_size_8",
    "block_size_32",
    "strided_q_float16",
    "shared_blocks",
    "worked_example",
)
IDS = tuple(f"decode/{name}" for name in NAMES)
KERNELS = ("v1", "v1_vector", "v2")
LOADS = {"v1": element_loads, "v1_vector": vector_loads}

Outputs = dict[str, Tensor]  # "out"; of v2 "exp_sums", "max_logits" and "tmp_out" too


def arguments_of(case_id: str) -> dict[str, object]:
    return dict(vars(CASES[case_id].paged("vllm")))


def outputs(case_id: str, kernel: str, device: str = "cpu") -> Outputs:
    """What one kernel writes for one case, by name; on the CPU: in the simulator."""
    arguments = {
        name: moved(value, device) if isinstance(value, Tensor) else value
        for name, value in arguments_of(case_id).items()
    }
    if kernel != "v2":
        return {"out": prepare_v1(**arguments, loads=LOADS[kernel]).run().cpu()}
    prepared = prepare_v2(**arguments, partition_size=some_partitions(CASES[case_id]))
    prepared.run()
    partitions = prepared.partitions
    of_a_head = partitions.out.shape[:-1]
    between = {
        name: partitions.arguments[name].view(of_a_head).cpu()
        for name in ("exp_sums", "max_logits")
    }
    return {"out": prepared.out.cpu(), **between, "tmp_out": partitions.out.cpu()}


def checksum(case_id: str) -> int:
    """Of the numbers that the kernels read: were others drawn, their outputs would differ."""
    tensors = [value for value in arguments_of(case_id).values() if isinstance(value, Tensor)]
    return zlib.crc32(b"".join(as_stored(t).contiguous().numpy().tobytes() for t in tensors))


def recorded_name(kernel: str) -> str:
    """v1 has the same numbers, bit for bit, whatever its loads are: they are kept once."""
    return "v2" if kernel == "v2" else "v1"


def as_arrays(case_id: str) -> dict[str, np.ndarray]:
    """What the file keeps of one case."""
    arrays = {f"{case_id} inputs": np.array(checksum(case_id), np.uint32)}
    for kernel in ("v1_vector", "v2"):
        for quantity, tensor in outputs(case_id, kernel).items():
            arrays[f"{case_id} {recorded_name(kernel)} {quantity}"] = as_stored(tensor).numpy()
    return arrays


def recorded(case_id: str, kernel: str, arrays: Mapping[str, np.ndarray]) -> Outputs:
    """What the file has of one case and kernel.

    Raises ValueError if this machine draws other inputs than those of the file.
    """
    if int(arrays[f"{case_id} inputs"]) != checksum(case_id):
        raise ValueError(f"the inputs of {case_id} are not those of {FILE.name}: record it anew")
    start = f"{case_id} {recorded_name(kernel)} "
    found = {}
    for name in (name for name in arrays if name.startswith(start)):
        tensor = torch.from_numpy(arrays[name])
        found[name.removeprefix(start)] = (
            tensor.view(torch.bfloat16) if tensor.dtype == torch.uint16 else tensor
        )
    return found


def load() -> dict[str, np.ndarray]:
    with np.load(FILE) as arrays:
        return dict(arrays)


def record() -> None:
    """Write simulated.npz."""
    arrays = {}
    for case_id in IDS:
        arrays |= as_arrays(case_id)
    np.savez_compressed(FILE, **arrays)
