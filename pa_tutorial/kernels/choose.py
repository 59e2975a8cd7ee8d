"""v1 or v2: vLLM's rule."""

from pa_tutorial.arguments import whole_number
from pa_tutorial.kernels.geometry import divide_round_up

VLLM_PARTITION_SIZE = 512
MOST_TOKENS_OF_V1 = 8192  # beyond that, v1 needs more shared memory than vLLM lets it have
ENOUGH_THREAD_BLOCKS = 512  # v1 has one per sequence and head; this many keep a GPU busy


def choose(num_seqs: int, num_heads: int, max_seq_len: int) -> str:
    """ "v1" or "v2" for a batch.

    v1, unless the context is longer than 8,192 tokens, or there is something to split and v1 would
    have at most 512 thread blocks, because then v2's partitions keep more of the GPU busy.

    Raises TypeError or ValueError for anything but whole numbers of at least 1.
    Source: vLLM, vllm/attention/ops/paged_attn.py, forward_decode.
    """
    for name, value in list(locals().items()):
        whole_number(name, value, least=1)
    max_num_partitions = divide_round_up(max_seq_len, VLLM_PARTITION_SIZE)
    nothing_to_split = max_num_partitions == 1
    enough = num_seqs * num_heads > ENOUGH_THREAD_BLOCKS
    use_v1 = max_seq_len <= MOST_TOKENS_OF_V1 and (nothing_to_split or enough)
    return "v1" if use_v1 else "v2"
