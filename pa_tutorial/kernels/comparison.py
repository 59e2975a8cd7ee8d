"""What the compiler makes of several texts of one kernel, as a table."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from numba import cuda, int32

from pa_tutorial.kernels.compiled import Capability, Compiled, compiled, v1_signature
from pa_tutorial.kernels.cpp_twin import compile_twin
from pa_tutorial.kernels.geometry import Geometry
from pa_tutorial.kernels.paged_attention import paged_attention
from pa_tutorial.kernels.running import with_names
from pa_tutorial.kernels.vectors import vector_loads

TITLES = ("", "registers", "stack", "spill", ".f64", "global loads", "shared loads")


@dataclass(frozen=True)
class Row:
    """One kernel. Bytes are those of one thread; loads are instructions in the text.

    global_loads, shared_loads  bytes that one instruction loads -> how many such instructions
    num_doubles                 how often .f64 stands in the PTX
    """

    name: str
    registers: int
    stack_bytes: int
    spill_bytes: int
    num_doubles: int
    global_loads: dict[int, int]
    shared_loads: dict[int, int]


def row(name: str, build: Compiled) -> Row:
    def of_space(space: str) -> dict[int, int]:
        return {width: count for (where, width), count in build.loads.items() if where == space}

    used = build.registers, build.stack_bytes, build.spill_bytes, build.num_doubles
    return Row(name, *used, of_space("global"), of_space("shared"))


def kernels(geometry: Geometry) -> dict[str, Callable]:
    """The texts to compare: both kinds of loads, without and with the thread index as uint32."""
    elements, vectors = paged_attention(geometry), paged_attention(geometry, vector_loads)
    return {
        "element loads, bare threadIdx": bare(elements),
        "element loads, unsigned": elements,
        "vector loads, bare threadIdx": bare(vectors),
        "vector loads, unsigned": vectors,
    }


def bare(kernel: Callable) -> Callable:
    """The paged kernel with int32(cuda.threadIdx.x), which is the type that it has, for uint32."""
    return cuda.jit(fastmath=True)(with_names(kernel, uint32=int32))


def comparison(
    geometry: Geometry,
    capability: Capability = (9, 0),
    texts: Mapping[str, Callable] | None = None,
) -> list[Row]:
    """One row a kernel, and one for the same kernel in CUDA C++; about a second each.

    texts  name -> a kernel with the arguments of paged_attention's; None: kernels(geometry)

    Raises ImportError where there is no compiler: on macOS.
    """
    texts = kernels(geometry) if texts is None else texts
    signature = v1_signature(geometry)
    rows = [row(name, compiled(text, signature, capability)) for name, text in texts.items()]
    return [*rows, row("CUDA C++", compile_twin(geometry, capability))]


def as_table(rows: list[Row]) -> str:
    """Fixed-width text; `140 x 2` are 140 instructions that load 2 bytes each."""
    lines = [TITLES, *(_cells(each) for each in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    name, *numbers, of_global, of_shared = range(len(TITLES))

    def text(cells: tuple[str, ...]) -> str:
        left = {column: cells[column].ljust(widths[column]) for column in (name, of_global)}
        right = {column: cells[column].rjust(widths[column]) for column in numbers}
        padded = {**left, **right, of_shared: cells[of_shared]}
        return "  ".join(padded[column] for column in range(len(TITLES))).rstrip()

    return "\n".join(map(text, lines))


def _cells(each: Row) -> tuple[str, ...]:
    numbers = each.registers, each.stack_bytes, each.spill_bytes, each.num_doubles
    loads = (
        ", ".join(f"{count} x {width}" for width, count in by_width.items())
        for by_width in (each.global_loads, each.shared_loads)
    )
    return (each.name, *map(str, numbers), *loads)
