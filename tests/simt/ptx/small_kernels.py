"""Small kernels in PTX: a body between the usual head and the end, run on arrays."""

import numpy as np

from simt.ptx import PtxReport, run_ptx
from simt.ptx.numbers import DTYPES

REGISTERS = {
    **dict.fromkeys(("u16", "s16", "b16", "f16", "bf16"), "h"),
    **dict.fromkeys(("u32", "s32", "b32", "f16x2", "bf16x2"), "r"),
    **dict.fromkeys(("u64", "s64", "b64"), "rd"),
    **{"f32": "f", "f64": "fd"},
}

HEAD = """
.version 8.0
.target sm_80
.address_size 64
.extern .shared .align 16 .b8 dynamic[];
.visible .entry kernel({parameters})
{{
.reg .pred %p<9>; .reg .b16 %h<40>; .reg .b32 %r<40>; .reg .b64 %rd<40>;
.reg .f32 %f<40>; .reg .f64 %fd<40>;
.shared .align 16 .b8 s[256];
mov.u32 %r0, %tid.x;
mul.wide.u32 %rd0, %r0, {pitch};
{pointers}
{body}
ret;
}}
"""


def text_of(body: str, num_arrays: int = 1, pitch: int = 4) -> str:
    """%r0 is the thread's number. %rd1, %rd2, … are the addresses of its item in each array, of
    `pitch` bytes; %rd11, %rd12, … those of the arrays."""
    names = range(1, num_arrays + 1)
    parameters = ", ".join(f".param .u64 p{n}" for n in names)
    pointers = "\n".join(
        f"ld.param.u64 %rd1{n}, [p{n}]; cvta.to.global.u64 %rd1{n}, %rd1{n}; "
        f"add.s64 %rd{n}, %rd1{n}, %rd0;"
        for n in names
    )
    return HEAD.format(parameters=parameters, pitch=pitch, pointers=pointers, body=body)


def run(body: str, *arrays: np.ndarray, threads: int | None = None, **options: object) -> PtxReport:
    """One thread for each item of the first array, unless `threads` says otherwise."""
    pitch = arrays[0].itemsize
    text, block = text_of(body, len(arrays), pitch), threads or len(arrays[0])
    return run_ptx(text, options.pop("grid", 1), block, *arrays, **options)


def computed(instruction: str, result: str, *operands: tuple[str, np.ndarray]) -> np.ndarray:
    """What an instruction makes of each item: computed("add.s32", "s32", …), or several, such as
    computed("shl.b32 {d}, {0}, 1; not.b32 {d}, {d}", "b32", …).

    result    type of the register that takes the result
    operands  the type and the items of each
    """
    lines, names, arrays = [], [], [np.zeros(len(operands[0][1]), np.uint64)]
    for number, (type_, items) in enumerate(operands, 2):
        names.append(f"%{REGISTERS[type_]}3{number}")
        lines.append(f"ld.global.b{8 * items.itemsize} {names[-1]}, [%rd{number}];")
        arrays.append(items.view(f"u{items.itemsize}").astype(np.uint64))
    target = f"%{REGISTERS[result]}31"
    if "{d}" in instruction:
        lines += [f"{instruction.format(*names, d=target)};"]
    else:
        lines += [f"{instruction} {', '.join([target, *names])};"]
    lines += [f"st.global.b{8 * DTYPES[result].itemsize} [%rd1], {target};"]
    run("\n".join(lines), *arrays)
    return arrays[0].astype(f"u{DTYPES[result].itemsize}").view(DTYPES[result])
