"""Functions that the compiler didn't inline, written as nvcc writes them."""

import numpy as np
import pytest

from simt.ptx import PtxError, PtxReport, run_ptx
from tests.simt.ptx.small_kernels import text_of

# square(x) = x * x; odd_or(x) = square(x) for odd x, else x; pair((x, y), z) = x * z + y, x - y.
FUNCTIONS = """
.func (.param .b32 out) square(.param .b32 in) {
.reg .b32 %r<3>; ld.param.u32 %r1, [in]; mul.lo.s32 %r2, %r1, %r1; st.param.b32 [out+0], %r2; ret;
}
.func (.param .b32 out) odd_or(.param .b32 in) {
.reg .pred %p<2>; .reg .b32 %r<4>;
ld.param.u32 %r1, [in]; st.param.b32 [out+0], %r1;
and.b32 %r2, %r1, 1; setp.eq.s32 %p1, %r2, 0; @%p1 ret;
{ .param .b32 param0; st.param.b32 [param0+0], %r1; .param .b32 retval0;
call.uni (retval0), square, (param0); ld.param.b32 %r3, [retval0+0]; }
st.param.b32 [out+0], %r3; ret;
}
.func (.param .align 8 .b8 out[8]) pair(.param .align 8 .b8 in[8], .param .b32 factor) {
.local .align 8 .b8 depot[8]; .reg .b32 %r<7>;
ld.param.v2.u32 {%r1, %r2}, [in]; ld.param.u32 %r3, [factor];
st.local.u32 [depot], %r3; ld.local.u32 %r4, [depot];
mad.lo.s32 %r5, %r1, %r4, %r2; sub.s32 %r6, %r1, %r2; st.param.v2.b32 [out+0], {%r5, %r6}; ret;
}
.func tally(.param .b32 start) {
.shared .align 4 .b8 s[4]; .reg .pred %p<2>; .reg .b32 %r<4>;
mov.u32 %r1, s; ld.param.b32 %r3, [start]; setp.ne.u32 %p1, %r3, 0;
@%p1 st.shared.u32 [%r1], %r3; atom.shared.add.u32 %r2, [%r1], 1; ret;
}
.func (.reg .b32 result) in_registers (.reg .b32 number) { mov.u32 result, number; ret; }
.func forever() { call.uni forever, (); ret; }
"""


def run(body: str, array: np.ndarray) -> PtxReport:
    text = text_of(body).replace(".visible", FUNCTIONS + ".visible")
    return run_ptx(text, 1, len(array), array)


def test_functions_have_registers_of_their_own_call_others_and_return_early() -> None:
    """Twice, the second time with the results of the first, then a shuffle with all lanes."""
    array = np.zeros(32, np.uint32)
    call = "{{ .param .b32 param0; st.param.b32 [param0+0], {}; .param .b32 retval0; "
    call += "call.uni (retval0), odd_or, (param0); ld.param.b32 {}, [retval0+0]; }} "
    body = "mov.u32 %r1, 7;" + call.format("%r0", "%r3") + call.format("%r3", "%r4")
    body += "shfl.sync.bfly.b32 %r5, %r4, 1, 31, -1; add.u32 %r5, %r5, %r1; "
    report = run(body + "st.global.u32 [%rd1], %r5;", array)
    assert array.tolist() == [7 + (t**4 if t % 2 else t) for t in (n ^ 1 for n in range(32))]
    # What is handed over lies in registers on a GPU: it is no access to memory.
    assert report.trace.num_instructions == 1


def test_structures_are_handed_over_and_returned() -> None:
    array = np.zeros(4, np.uint32)
    body = (
        "{ .param .align 8 .b8 param0[8]; st.param.v2.b32 [param0+0], {%r0, 5}; "
        ".param .b32 param1; st.param.b32 [param1+0], 100; .param .align 8 .b8 retval0[8]; "
        "call.uni (retval0), pair, (param0, param1); ld.param.v2.b32 {%r3, %r4}, [retval0+0]; } "
        "mad.lo.s32 %r3, %r4, 1000, %r3; st.global.u32 [%rd1], %r3;"
    )
    report = run(body, array)
    assert array.view(np.int32).tolist() == [(t - 5) * 1000 + 100 * t + 5 for t in range(4)]
    assert report.trace.only(space="local").num_instructions == 2


def test_shared_memory_of_a_function_is_one_for_all_its_calls() -> None:
    """And not the kernel's of the same name."""
    array = np.zeros(1, np.uint32)
    call = "{{ .param .b32 p0; st.param.b32 [p0], {}; call.uni tally, (p0); }}"
    body = "st.shared.u32 [s], 7; " + call.format(100) + call.format(0)
    report = run(body + "ld.shared.u32 %r3, [s]; st.global.u32 [%rd1], %r3;", array)
    assert array.tolist() == [7]
    assert report.kernel.num_bytes["shared"] == 256 + 4
    assert report.machine.memory["shared"].data[256:260].view(np.uint32) == 102


@pytest.mark.parametrize(
    ("body", "what"),
    [
        ("call.uni (%r3), %rd1, (%r0), prototype_0;", "no such function: call.uni .%r3., %rd1"),
        ("@%p1 call.uni tally, ();", "no such function: @%p1 call.uni tally, ()"),
        ("call.uni (%r3), in_registers, (%r0);", "in_registers takes or gives values in registers"),
        ("call.uni forever, ();", "forever calls itself"),
        ("st.param.u64 [p1], %rd1;", r"line \d+ of the PTX: st.param.u64 \[p1\]"),  # read-only
        ("call.uni square, (p1);", "square takes and gives 2 values"),
    ],
)
def test_a_call_that_cannot_be_run_is_refused_with_its_line(body: str, what: str) -> None:
    with pytest.raises(PtxError, match=what):
        run(body, np.zeros(4, np.uint32))
