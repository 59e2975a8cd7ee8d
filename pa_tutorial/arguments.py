"""How a bad argument is refused: by its name, what it was and what is allowed."""

import numpy as np
import torch
from torch import Tensor

DEVICES = ("cpu", "cuda")
FLT_MAX = float(torch.finfo(torch.float32).max)


def require(condition: bool, name: str, value: object, allowed: str) -> None:
    """Raise ValueError that names the argument, what it was and what is allowed."""
    if not condition:
        raise ValueError(f"{name} is {value}; it must be {allowed}")


def require_heads(num_heads: int, num_kv_heads: int) -> None:
    require(num_heads >= 1, "num_heads", num_heads, "at least 1")
    require(
        num_kv_heads >= 1 and num_heads % num_kv_heads == 0,
        "num_kv_heads",
        num_kv_heads,
        f"a divisor of num_heads, which is {num_heads}",
    )


def require_tensor(name: str, tensor: Tensor) -> None:
    """Raise TypeError or ValueError unless this is a tensor whose memory holds its numbers."""
    if not isinstance(tensor, Tensor):
        allowed = "a torch.Tensor or None" if name == "alibi_slopes" else "a torch.Tensor"
        raise TypeError(f"{name} is of type {type(tensor).__name__}; it must be {allowed}")
    if tensor.device.type not in DEVICES:
        require(False, f"{name}.device", tensor.device, " or ".join(DEVICES))
    negative = "a view whose memory holds its numbers with the other sign"
    require(not tensor.is_neg(), name, negative, f"{name}.resolve_neg()")


def require_readable(name: str, tensor: Tensor) -> None:
    """Raise TypeError or ValueError unless this is a tensor that holds at least one number."""
    require_tensor(name, tensor)
    if not tensor.numel():
        raise ValueError(f"{name} has shape {list(tensor.shape)}; every size must be at least 1")


def require_dense(name: str, tensor: Tensor, dims: int) -> None:
    """Raise ValueError unless the last `dims` dimensions lie in their order, without gaps."""
    if dims == tensor.dim() and tensor.is_contiguous():  # the usual case costs nothing
        return
    dense = torch.empty(tensor.shape[-dims:], device="meta")
    same = strides(tensor)[-dims:] == strides(dense)
    allowed = f"{dense.stride()}: the last {dims} dimensions without gaps"
    require(same, f"{name}.stride()[-{dims}:]", tensor.stride()[-dims:], allowed)


def strides(tensor: Tensor) -> tuple[int, ...]:
    """Strides; 0 for dimensions of size 1, where any stride will do."""
    sizes = zip(tensor.shape, tensor.stride(), strict=True)
    return tuple(stride if n > 1 else 0 for n, stride in sizes)


def float32_scale(scale: float) -> np.float32:
    """The scale as a kernel takes it; with a float64, a GPU would compute float64 scores.

    Raises TypeError for what is no number, ValueError for one that float32 does not have.
    """
    is_number = isinstance(scale, int | float | np.integer | np.floating)
    if not is_number or isinstance(scale, bool):
        raise TypeError(f"scale is of type {type(scale).__name__}; it must be a real number")
    value = scale if isinstance(scale, int) else float(scale)  # 10**400 is no float
    require(-FLT_MAX <= value <= FLT_MAX, "scale", scale, "finite, as a float32")
    return np.float32(value)
