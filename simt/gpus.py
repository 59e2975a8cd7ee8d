"""Sizes of a GPU, and how many thread blocks they allow on one multiprocessor at a time."""

from dataclasses import dataclass

from simt.memory import aligned

WARP_SIZE = 32  # lanes
ALL_LANES = 0xFFFFFFFF  # the mask of a shuffle in which all lanes of a warp take part
KB, MB, GB = 1024, 1024**2, 1000**3
MAX_THREADS = 1024  # of a thread block, on every GPU
MAX_GRID_YZ = 65_535  # thread blocks along axis y or z of a grid
REGISTER = 4  # bytes
REGISTERS_AT_ONCE = 256  # a warp's registers are allocated in units of this many
SHARED_AT_ONCE = 128  # bytes
RESERVED_SHARED = 1 * KB  # per thread block, for CUDA itself
NUM_SCHEDULERS = 4  # each has a quarter of the registers, for its own warps


@dataclass(frozen=True)
class Gpu:
    """Sizes of a GPU: bytes, or counts per multiprocessor unless a comment says otherwise."""

    name: str
    num_multiprocessors: int
    registers: int
    max_registers_per_thread: int
    shared_bytes: int
    max_shared_bytes_per_block: int
    l1_bytes: int  # shared memory is a part of it
    max_threads: int
    max_blocks: int
    l2_bytes: int  # of the whole GPU
    dram_bytes: int
    dram_bytes_per_second: float

    @property
    def max_warps(self) -> int:
        return self.max_threads // WARP_SIZE

    def resident_blocks(
        self, num_threads: int, registers: int, shared_bytes: int
    ) -> dict[str, int]:
        """How many thread blocks each resource has room for at a time; the smallest number counts.

        num_threads   per thread block
        registers     per thread
        shared_bytes  per thread block, static and dynamic together

        Raises ValueError if not even one thread block can be launched.
        """
        self._check(num_threads, registers, shared_bytes)
        warps = -(-num_threads // WARP_SIZE)
        of_warp = aligned(registers * WARP_SIZE, REGISTERS_AT_ONCE)
        with_registers = NUM_SCHEDULERS * (self.registers // NUM_SCHEDULERS // of_warp)
        of_block = aligned(shared_bytes + RESERVED_SHARED, SHARED_AT_ONCE)
        fits = {
            "threads": self.max_warps // warps,
            "registers": with_registers // warps,
            "shared memory": self.shared_bytes // of_block,
            "thread blocks": self.max_blocks,
        }
        if not fits["registers"]:
            raise ValueError(
                f"{num_threads} threads of {registers} registers do not fit: a multiprocessor has "
                f"{self.registers}"
            )
        return fits

    def _check(self, num_threads: int, registers: int, shared_bytes: int) -> None:
        if not 1 <= num_threads <= MAX_THREADS:
            raise ValueError(f"num_threads is {num_threads}; 1 to {MAX_THREADS} are allowed")
        limit = self.max_registers_per_thread
        if not 1 <= registers <= limit:
            raise ValueError(f"registers is {registers}; a thread has 1 to {limit}")
        limit = self.max_shared_bytes_per_block
        if not 0 <= shared_bytes <= limit:
            raise ValueError(f"shared_bytes is {shared_bytes}; a thread block has at most {limit}")


# Sources: NVIDIA H100 Tensor Core GPU Architecture (2022); NVIDIA H100 data sheet (SXM);
# CUDA C++ Programming Guide, "Compute Capabilities", 9.0; Hopper Tuning Guide, "Shared Memory".
H100 = Gpu(
    name="H100 SXM",
    num_multiprocessors=132,
    registers=65_536,
    max_registers_per_thread=255,
    shared_bytes=228 * KB,
    max_shared_bytes_per_block=227 * KB,
    l1_bytes=256 * KB,
    max_threads=2048,
    max_blocks=32,
    l2_bytes=50 * MB,
    dram_bytes=80 * GB,
    dram_bytes_per_second=3.35e12,
)
