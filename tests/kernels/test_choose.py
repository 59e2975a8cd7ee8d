"""v1 or v2: vLLM's rule at its edges, and measurements in its place."""

import pytest

from pa_tutorial.kernels.choose import Measured, choose

MEASURED = [Measured(1, 32, 1024, v1=9.0, v2=7.0), Measured(64, 32, 1024, v1=40.0, v2=42.0)]
# 2,896 lies in the middle between 1,024 and 8,192: 1.5 doublings from each.
BY_CONTEXT = [Measured(4, 32, 1024, v1=10.0, v2=12.0), Measured(4, 32, 8192, v1=80.0, v2=30.0)]


@pytest.mark.parametrize(
    ("num_seqs", "num_heads", "max_seq_len", "measured", "chosen"),
    [
        (1, 32, 512, (), "v1"),  # one partition: nothing to split
        (1, 32, 513, iter(()), "v2"),  # two, and 32 thread blocks do not fill a GPU
        (16, 32, 513, (), "v2"),  # 512 thread blocks are not more than 512
        (513, 1, 513, (), "v1"),
        (17, 32, 8192, (), "v1"),
        (17, 32, 8193, (), "v2"),  # too long for v1, however many sequences
        (1, 32, 1024, MEASURED, "v2"),
        (7, 32, 1024, MEASURED, "v2"),  # 7 is nearer to 1 than to 64: 2.8 doublings, not 3.2
        (9, 32, 1024, iter(MEASURED), "v1"),
        (32, 64, 1024, MEASURED, "v1"),  # as many thread blocks as 64 sequences of 32 heads
        (64, 32, 16_384, MEASURED, "v1"),  # the rule would say v2
        (4, 32, 2800, BY_CONTEXT, "v1"),
        (4, 32, 3000, BY_CONTEXT, "v2"),
    ],
)
def test_the_rule_or_the_nearest_measured_batch_decides(
    num_seqs: int, num_heads: int, max_seq_len: int, measured: list[Measured], chosen: str
) -> None:
    assert choose(num_seqs, num_heads, max_seq_len, measured) == chosen


def test_as_fast_as_v2_is_v1() -> None:
    assert Measured(1, 1, 1, v1=2.0, v2=2.0).faster == "v1"


@pytest.mark.parametrize("name", ["num_seqs", "num_heads", "max_seq_len"])
def test_an_empty_batch_is_refused(name: str) -> None:
    sizes = {"num_seqs": 1, "num_heads": 1, "max_seq_len": 1, name: 0}
    with pytest.raises(ValueError, match=f"^{name} is 0; it must be 1 or more"):
        choose(**sizes)
