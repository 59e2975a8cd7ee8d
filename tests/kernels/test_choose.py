"""v1 or v2: vLLM's rule at its edges."""

import pytest

from pa_tutorial.kernels.choose import choose


@pytest.mark.parametrize(
    ("num_seqs", "num_heads", "max_seq_len", "chosen"),
    [
        (1, 32, 512, "v1"),  # one partition: nothing to split
        (1, 32, 513, "v2"),  # two, and 32 thread blocks do not fill a GPU
        (16, 32, 513, "v2"),  # 512 thread blocks are not more than 512
        (513, 1, 513, "v1"),
        (17, 32, 8192, "v1"),
        (17, 32, 8193, "v2"),  # too long for v1, however many sequences
    ],
)
def test_the_rule_decides(num_seqs: int, num_heads: int, max_seq_len: int, chosen: str) -> None:
    assert choose(num_seqs, num_heads, max_seq_len) == chosen


@pytest.mark.parametrize("name", ["num_seqs", "num_heads", "max_seq_len"])
def test_an_empty_batch_is_refused(name: str) -> None:
    sizes = {"num_seqs": 1, "num_heads": 1, "max_seq_len": 1, name: 0}
    with pytest.raises(ValueError, match=f"^{name} is 0; it must be at least 1"):
        choose(**sizes)
