"""A loop without an end is stopped, and named; one that ends isn't, however long it takes."""

import time

import pytest

from simt import launch
from tests.simt.helpers import kernel, zeros

N = 20_000  # turns
ENDLESS = {
    "nothing changes": "while True:\n    pass",
    "the step is forgotten": "i, s = 0, 0\nwhile i < a.size:\n    s += a[i]",
    "the step is 0": "i = 0\nwhile i < a.size:\n    i += 0",
    "it waits for another thread block": "while a[0] == 0:\n    pass",
    "of each lane": "i = cuda.threadIdx.x\nwhile i < a.size:\n    b = a[i]\n    b += 1",
}
LONG = {
    "a while loop": ("while i < N:\n    i += 1", {}),
    "a for loop": ("for i in range(1, N + 1):\n    pass", {}),
    "one that is left": (
        "while True:\n    i += 1\n    if i == N:\n        break",
        {"max_turns": N},
    ),
}


@pytest.mark.parametrize("order", ["together", "forward"])
@pytest.mark.parametrize("lines", ENDLESS.values(), ids=ENDLESS)
def test_an_endless_loop_is_named_within_seconds(lines: str, order: str) -> None:
    start = time.thread_time()
    first = next(line for line in lines.splitlines() if line.startswith("while"))
    with pytest.raises(RuntimeError, match=r"^10000 turns of one loop.* and no end: ") as raised:
        launch(kernel("a", lines), 4, 64, zeros(128), order=order, trace=0)
    assert str(raised.value).endswith(first)
    assert time.thread_time() - start < 3


@pytest.mark.parametrize(("lines", "options"), LONG.values(), ids=LONG)
def test_a_long_loop_ends(lines: str, options: dict[str, int]) -> None:
    out = zeros(1)
    launch(kernel("out", f"i = 0\n{lines}\nout[0] = i", N=N), 1, 1, out, **options)
    assert out[0] == N
