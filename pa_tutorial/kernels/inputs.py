"""What a kernel can take: the tensors of a launch are checked, and put as the kernel reads them."""

import numpy as np
import torch
from torch import Tensor

from pa_tutorial.arguments import require
from pa_tutorial.attention.paged import require_blocks_and_lengths, require_paged_shapes
from pa_tutorial.kernels.geometry import FLT_MAX, VEC_BYTES, Geometry
from pa_tutorial.simt.simulate import MAX_SHARED

DEVICES = ("cpu", "cuda")
MOST_ON_AXIS = 65_535  # thread blocks along axis y or z of a grid
SLOPE_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def geometry_of(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_tables: Tensor,
    seq_lens: Tensor,
    alibi_slopes: Tensor | None,
    num_threads: int,
    partition_size: int = 0,
) -> Geometry:
    """The geometry that these tensors ask for.

    Raises TypeError or ValueError for what no kernel can take.
    """
    require_kernel_inputs(q, k_cache, v_cache, block_tables, seq_lens, alibi_slopes)
    num_heads, head_size = q.shape[1:]
    return Geometry(
        head_size=head_size,
        block_size=v_cache.shape[3],
        dtype=q.dtype,
        num_threads=num_threads,
        partition_size=partition_size,
        num_queries_per_kv=num_heads // k_cache.shape[1],
    )


def require_kernel_inputs(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_tables: Tensor,
    seq_lens: Tensor,
    alibi_slopes: Tensor | None,
) -> None:
    """Raise TypeError or ValueError, naming the argument, unless a kernel can read all of them.

    Of tensors on a GPU, lengths, block numbers and slopes are not looked at: that would wait for
    everything that the GPU still has to do.
    """
    tensors = {
        "q": q,
        "k_cache": k_cache,
        "v_cache": v_cache,
        "block_tables": block_tables,
        "seq_lens": seq_lens,
    }
    require_all_readable(tensors, alibi_slopes)
    require(k_cache.dim() == 5, "k_cache.shape", list(k_cache.shape), "of 5 dimensions: vLLM's")
    require_paged_shapes(q, k_cache, v_cache, block_tables, seq_lens, alibi_slopes)
    x = VEC_BYTES // k_cache.element_size()
    require(k_cache.shape[4] == x, "k_cache.shape[4]", k_cache.shape[4], f"x = {x}")
    require(q.dtype == k_cache.dtype, "q.dtype", q.dtype, f"{k_cache.dtype}, as the cache")
    require_strides(q, k_cache, v_cache)
    require_batch_and_slopes(q, alibi_slopes)
    if q.device.type == "cpu":
        require_blocks_and_lengths(block_tables, seq_lens, len(v_cache), v_cache.shape[3])
        if alibi_slopes is not None:
            require_slopes(alibi_slopes)


def require_batch_and_slopes(q: Tensor, alibi_slopes: Tensor | None) -> None:
    """Raise ValueError for more sequences than a grid has room for, and for slopes of a dtype
    that is no float."""
    allowed = f"at most {MOST_ON_AXIS}: axis y of a grid"
    require(len(q) <= MOST_ON_AXIS, "len(q)", len(q), allowed)
    if alibi_slopes is not None:
        allowed = f"one of {', '.join(map(str, SLOPE_DTYPES))}"
        dtype = alibi_slopes.dtype
        require(dtype in SLOPE_DTYPES, "alibi_slopes.dtype", dtype, allowed)


def require_all_readable(
    tensors: dict[str, Tensor], alibi_slopes: Tensor | None, device: torch.device | None = None
) -> None:
    """Raise TypeError or ValueError unless these hold numbers, on the device of q.

    tensors  by name, q first
    device   where they must be, if not where q is
    """
    given = tensors if alibi_slopes is None else tensors | {"alibi_slopes": alibi_slopes}
    for name, tensor in given.items():
        require_readable(name, tensor)
        where = tensors["q"].device if device is None else device
        on = f"{where}, as q" if device is None else where
        require(tensor.device == where, f"{name}.device", tensor.device, on)


def require_readable(name: str, tensor: Tensor) -> None:
    """Raise TypeError or ValueError unless this is a tensor whose memory holds its numbers, one
    or more."""
    require_tensor(name, tensor)
    if 0 in tensor.shape:
        raise ValueError(f"{name} has shape {list(tensor.shape)}; every size must be at least 1")


def require_tensor(name: str, tensor: Tensor) -> None:
    """Raise TypeError or ValueError unless this is a tensor whose memory holds its numbers."""
    if not isinstance(tensor, Tensor):
        allowed = "a torch.Tensor or None" if name == "alibi_slopes" else "a torch.Tensor"
        raise TypeError(f"{name} is of type {type(tensor).__name__}; it must be {allowed}")
    require(tensor.device.type in DEVICES, f"{name}.device", tensor.device, " or ".join(DEVICES))
    negative = "a view whose memory holds its numbers with the other sign"
    require(not tensor.is_neg(), name, negative, f"{name}.resolve_neg()")


def require_strides(q: Tensor, k_cache: Tensor, v_cache: Tensor) -> None:
    """Raise ValueError unless the numbers lie where v1 computes their offsets."""
    for name, tensor, dims in (("q", q, 2), ("k_cache", k_cache, 3), ("v_cache", v_cache, 2)):
        require_dense(name, tensor, dims)
    same = steps(v_cache)[:2] == steps(k_cache)[:2]
    allowed = f"{k_cache.stride()[:2]}, as those of k_cache"
    require(same, "v_cache.stride()[:2]", v_cache.stride()[:2], allowed)


def require_dense(name: str, tensor: Tensor, dims: int) -> None:
    """Raise ValueError unless the last `dims` dimensions lie in their order, without gaps."""
    dense = torch.empty(tensor.shape[-dims:], device="meta")
    same = steps(tensor)[-dims:] == steps(dense)
    allowed = f"{dense.stride()}: the last {dims} dimensions without gaps"
    require(same, f"{name}.stride()[-{dims}:]", tensor.stride()[-dims:], allowed)


def steps(tensor: Tensor) -> tuple[int, ...]:
    """The strides; 0 for a dimension of size 1, where nobody steps: any stride will do."""
    sizes = zip(tensor.shape, tensor.stride(), strict=True)
    return tuple(stride if n > 1 else 0 for n, stride in sizes)


def require_slopes(alibi_slopes: Tensor) -> None:
    """Raise ValueError unless every slope is finite as a float32. It reads the numbers."""
    for head, slope in enumerate(alibi_slopes.float().tolist()):
        finite = abs(slope) <= FLT_MAX
        given = alibi_slopes[head].item()
        require(finite, f"alibi_slopes[{head}]", given, "finite, as a float32")


def require_aligned(geometry: Geometry, q: Tensor, k_cache: Tensor, v_cache: Tensor) -> None:
    """Raise ValueError unless every vec starts at a multiple of its size.

    A GPU stops a kernel that loads 16 bytes from another address. The heads of q are a multiple
    of its vecs long, and so are the pieces of a block: what counts is where a tensor starts, and
    the strides over sequences, blocks and heads.
    """
    vec_bytes = geometry.VEC_SIZE * geometry.ITEMSIZE
    for name, tensor, num_bytes, dims in (
        ("q", q, vec_bytes, 1),
        ("k_cache", k_cache, VEC_BYTES, 2),
        ("v_cache", v_cache, VEC_BYTES, 2),
    ):
        require_aligned_start(name, tensor, num_bytes)
        for dim, step in enumerate(steps(tensor)[:dims]):
            stride = step * geometry.ITEMSIZE
            allowed = f"a multiple of {num_bytes} bytes, what one load brings"
            require(stride % num_bytes == 0, f"{name}.stride({dim})", f"{stride} bytes", allowed)


def require_aligned_start(name: str, tensor: Tensor, num_bytes: int) -> None:
    """Raise ValueError unless the first element lies at a multiple of so many bytes."""
    past = tensor.data_ptr() % num_bytes
    where = f"{past} bytes past a multiple of {num_bytes}"
    allowed = f"at a multiple of {num_bytes}, the bytes that one load brings"
    require(past == 0, f"{name}.data_ptr()", where, allowed)


def longest(block_tables: Tensor, seq_lens: Tensor, block_size: int, given: int | None) -> int:
    """max_seq_len of a launch: what is given, or the longest of seq_lens.

    On a GPU nobody looks at seq_lens; there it is all that a block table has room for.
    Raises TypeError or ValueError for a max_seq_len that cannot be.
    """
    room = block_tables.shape[1] * block_size
    on_cpu = seq_lens.device.type == "cpu"
    least = int(seq_lens.max()) if on_cpu else 1
    if given is None:
        return least if on_cpu else room
    if not isinstance(given, int) or isinstance(given, bool):
        raise TypeError(f"max_seq_len is of type {type(given).__name__}; it must be an int")
    allowed = f"{least} to {room}: the longest sequence, and what a block table has room for"
    require(least <= given <= room, "max_seq_len", given, allowed)
    return given


def float32_scale(scale: float) -> np.float32:
    """The scale as the kernel takes it; with a float64, a GPU would compute float64 scores.

    Raises TypeError for what is no number, ValueError for one that float32 does not have.
    """
    is_number = isinstance(scale, int | float | np.integer | np.floating)
    if not is_number or isinstance(scale, bool):
        raise TypeError(f"scale is of type {type(scale).__name__}; it must be a real number")
    value = scale if isinstance(scale, int) else float(scale)  # 10**400 is no float
    require(-FLT_MAX <= value <= FLT_MAX, "scale", scale, "finite, as a float32")
    return np.float32(value)


V1_HINT = (
    "4 for each token. paged_attention_v2 has no such limit: each of its thread blocks has the "
    "scores of one partition"
)


def require_shared(
    num_bytes: int,
    value: int,
    limit: int = MAX_SHARED,
    name: str = "max_seq_len",
    hint: str = V1_HINT,
) -> None:
    """Raise ValueError for a value that asks for more shared memory than a thread block can have.

    In v1 all scores of a sequence lie there; so its length has an end.
    """
    if num_bytes > limit:
        raise ValueError(
            f"{name} is {value}, which needs {num_bytes:,} bytes of shared memory; a thread block "
            f"has at most {limit:,}, {hint}"
        )


def slopes_or_zeros(alibi_slopes: Tensor | None, q: Tensor) -> Tensor:
    """[num_heads] float32. vLLM passes a null pointer for no slopes; Python has none."""
    if alibi_slopes is None:
        return torch.zeros(q.shape[1], device=q.device)
    return alibi_slopes.float()


def flat(tensor: Tensor) -> Tensor:
    """The memory from the first element to the last, gaps included, as one dimension."""
    last = sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.as_strided((last + 1,), (1,))
