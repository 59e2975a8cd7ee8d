"""A loop without an end is stopped, and named; one that ends isn't, however long it takes."""

import re

import numpy as np
import pytest

from simt import launch
from tests.simt.helpers import kernel, zeros

LOOK_EVERY = 211  # turns, in most tests; a prime, as 4,999 is
N = 1000  # turns
ENDLESS = {
    "nothing changes": "while True:\n    pass",
    "the step is 0": "i = 0\nwhile i < a.size:\n    i += 0",
    "it waits for another thread block": "while a[0] == 0:\n    pass",
    "a lock that a lane of the same warp has": "while cuda.atomic.cas(a, 0, 0, 1) != 0:\n    pass",
    "of each lane": "i = cuda.threadIdx.x\nwhile i < a.size:\n    b = a[i]\n    b += 1",
}
LONG = {
    "a while loop": "while i < N:\n    i += 1",
    "a for loop": "for i in range(1, N + 1):\n    pass",
    "one that goes on and off": "k = 0\nwhile k < 2:\n    i += 1\n    k = 2 if i == N else 1 - k",
    "a counter in memory": "while out[0] < N:\n    out[0] += 1\ni = N",
    "a counter that all share": "while cuda.atomic.add(out, 0, 1) < N:\n    i += 1",
}


@pytest.mark.parametrize("order", ["together", "forward"])
@pytest.mark.parametrize("lines", ENDLESS.values(), ids=ENDLESS)
def test_an_endless_loop_is_named(lines: str, order: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("simt.statements.LOOK_EVERY", LOOK_EVERY)
    first = next(line for line in lines.splitlines() if line.startswith("while"))
    words = rf"^{2 * LOOK_EVERY} turns of one loop .* and no end: .*{re.escape(first)}$"
    with pytest.raises(RuntimeError, match=words):
        launch(kernel("a", lines), 4, 64, np.zeros(128, np.int32), order=order, trace=0)


@pytest.mark.parametrize("lines", LONG.values(), ids=LONG)
def test_a_long_loop_ends(lines: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("simt.statements.LOOK_EVERY", LOOK_EVERY)
    out = zeros(1)
    launch(kernel("out", f"i = 0\n{lines}\nout[0] = i", N=N), 1, 1, out)
    assert out[0] == N


def test_an_endless_loop_gets_10_000_turns() -> None:
    with pytest.raises(RuntimeError, match="9998 turns of one loop"):
        launch(kernel("a", "while True:\n    pass"), 1, 1, zeros(1))
