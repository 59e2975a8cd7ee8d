"""What the sources say of the CUDA kernel, and what is not so: notebooks 07 to 12."""

from pa_tutorial.index.entry import Erratum, cells_of
from pa_tutorial.index.sources import dive, document, notes

nb07 = cells_of("07_cuda_in_the_simulator")
nb08 = cells_of("08_first_paged_kernel")
nb09 = cells_of("09_query_and_key")
nb10 = cells_of("10_softmax_and_value")
nb11 = cells_of("11_vector_loads")
nb12 = cells_of("12_partitions")

OF_KERNEL = (
    Erratum(
        "The second loop, and its `%`, are there for blocks of more than 32 tokens.",
        (dive("section 5.3"),),
        "vLLM compiles blocks of 8, 16 and 32, so the loop has one turn. The `% BLOCK_SIZE` is "
        "needed always: thread groups are counted through the whole thread block.",
        (*nb07("def assign_wrongly("), *nb09("no_modulo = changed(")),
    ),
    Erratum(
        "The kernel has an argument `const scalar_t* out`.",
        (dive("section 5.1"), document("Inputs")),
        "It writes `out`, so this is no `const`.",
        nb08('for name in ("q", "k_cache", "v_cache", "block_tables", "seq_lens", "out")'),
    ),
    Erratum(
        "The caches have the type of q.",
        (dive("section 5.1, in the listing"), document("Inputs")),
        "They have a type of their own, `cache_t`, so that K and V can be kept in 8 bits.",
        nb08("wide = replace(ready"),
    ),
    Erratum(
        "The context is the generated tokens, without that of the query.",
        (document("Concepts"),),
        "`seq_len` counts the prompt, what was generated, and the current token, whose K and V "
        "are in the cache already.",
        nb08("for seq_len in (11, 10):"),
    ),
    Erratum(
        "With one query for each sequence, K and V are fetched only once.",
        (notes("on single-query kernels"),),
        "A query has many heads, and each reads the K and V of its KV head again.",
        nb08("readers = Counter("),
    ),
    Erratum(
        "In a group of 2 and a head of 8 elements, thread 0 has the elements 0, 2, 4, 6.",
        (document("Concepts"),),
        "Vecs go round, not elements: 0 to 3 with 2 bytes an element, 0, 1, 4, 5 with 4 bytes.",
        nb09("vecs = [list(range(first", "of a group owns {len(elements)} elements"),
    ),
    Erratum(
        "It is proved that NUM_VECS_PER_THREAD is the number of 16-byte pieces of a head.",
        (dive("section 5.2"),),
        "The proof uses what it wants to show. It is so for all that vLLM compiles; it would not "
        "be so for float32 with blocks of 4.",
        nb09("x, group_times_vec = "),
    ),
    Erratum(
        "Each thread group fetches the query.",
        (document("Query"),),
        "There is one copy, in shared memory. All groups bring it together; with heads of 128 and "
        "blocks of 16, 16 of 64 groups have something to bring.",
        nb09("groups that load:"),
    ),
    Erratum(
        "Thread 0 loads the vecs 0, 2, 4, … of q.",
        (notes("on loading q"),),
        "These it reads later. It loads vec 0 only.",
        nb09("groups that load:"),
    ),
    Erratum(
        "From one turn to the next, i goes from 1 to 7.",
        (dive("section 5.2"),),
        "It goes up by NUM_THREAD_GROUPS, which is 32, 64 or 128 with 128 threads.",
        nb09("groups that load:"),
    ),
    Erratum(
        "All *kernels* of a thread block share the shared memory.",
        (dive("section 5.2"),),
        "All *threads* do: thread 0 reads vecs that other threads have loaded.",
        nb09("groups that load:"),
    ),
    Erratum(
        "The kernel is printed without a barrier after q is loaded.",
        (document("QK"), notes("its first listing")),
        "Without it there is a race: threads read vecs that others are still to write.",
        nb09("without_barrier = changed("),
    ),
    Erratum(
        "The left half of the picture of K is 16 blocks for warp 0.",
        (document("Key"),),
        "It is one block of 16 tokens: a warp has one block at a time.",
        nb09("keys.draw_blocks_of_warps("),
    ),
    Erratum(
        "K goes from global to shared memory, in tiles.",
        (document("its introduction"), notes("on vectorised loads")),
        "Only q, the logits (later the output) and the partial results of reductions are there. K "
        "and V go from global memory to the threads.",
        nb09("print(bytes_by_space(run.trace))"),
    ),
    Erratum(
        "It is a drawback that a thread needs few registers for K.",
        (dive("section 5.3"),),
        "The fewer registers a thread needs, the more thread blocks run on a multiprocessor at "
        "once.",
        nb09("fits = H100.resident_blocks("),
    ),
    Erratum(
        "A thread block handles the whole context, and logits has as many entries as the context "
        "has tokens.",
        (document("Concepts, and qk_max and logits"), notes("on thread blocks, and on qk_max")),
        "This is v1, and there the longest sequence of the batch decides, rounded up to whole "
        "blocks. In v2 it is a partition of 512 tokens.",
        (*nb10("num_bytes = geometry.dynamic_shared_bytes("), *nb12("def fits(")),
    ),
    Erratum(
        "The first warp reads `red_smem` and finds the maximum.",
        (notes("on qk_max"),),
        "Every warp does, each for itself. So no second barrier is needed.",
        nb10('array="red_smem", kind="read", warp=warp'),
    ),
    Erratum(
        "The maximum over the warps is printed without the barrier before it (and without the "
        "line that reads `red_smem`).",
        (document("qk_max and logits"), notes("its first listing")),
        "Without the barrier there are two races, for `red_smem` and for `logits`.",
        nb10('write = "            red_smem[warp_idx] = qk_max'),
    ),
    Erratum(
        "The exponentials are summed for each thread group.",
        (document("exp_sum"),),
        "There are no groups in this loop: thread t takes the tokens t, t + NUM_THREADS, …, "
        "whoever computed their scores.",
        nb10('writes = run.trace.only("logits[i]"'),
    ),
    Erratum(
        "The loop over the tokens is a grid-stride loop.",
        (notes("on exp_sum"),),
        "Its step is NUM_THREADS, the threads of one thread block.",
        nb10('writes = run.trace.only("logits[i]"'),
    ),
    Erratum(
        "The mask sets the scores of empty slots to 0.",
        (dive("section 5.3"),),
        "As a score, 0 would count. It is their final weight: the maximum skips them, and the "
        "loops of the softmax end before them.",
        nb10("the 0 as a score:"),
    ),
    Erratum(
        "The accs of thread 0 are the elements 0, 32, …, 224 of the head.",
        (document("LV"), notes("on LV: 32 comes after 0")),
        "The step is NUM_ROWS_PER_ITER, here 16: 0, 16, …, 112. There is no row 224 in a head of "
        "128.",
        nb10("for lane in (0, 1, 2, 31):"),
    ),
    Erratum(
        "For V, a thread works alone, without its neighbours.",
        (notes("on vectorised loads"),),
        "Lanes that share a row have different tokens of it, and add up with shuffles.",
        nb10("for lane in (0, 1, 2, 31):", '"# The sum over the lanes that share a row"'),
    ),
    Erratum(
        "V is loaded element by element, and empty slots are looked for in every block.",
        (dive("section 5.5"),),
        "One load brings a vec, and only in the last block of a sequence slots are set to zero. "
        "Before that the weights are rounded to the type of V, which the listing leaves out.",
        (
            *nb10('zeroed = run.trace.only("v_vec[j]"', '"as the original": narrow_dot('),
            *nb11('print("                          a vec of K'),
        ),
    ),
    Erratum(
        "Without thread groups, the loads of K would not be coalesced, and there would be more "
        "bank conflicts.",
        (notes("on vectorised loads"),),
        "In vLLM's layout they are coalesced with groups of 4, 2 and 1. Groups give work to all "
        "threads; the bank conflict of `q_vecs` exists only where there are groups.",
        (
            *nb11("query.padded_run(g, 0, vector_loads)"),
            *nb09("query.query_reads(g, padding)"),
        ),
    ),
    Erratum(
        "The grid is (num_heads, num_seqs, 1).",
        (dive("section 5.1"),),
        "In v1. In v2 the third number is that of the partitions.",
        nb12("for launch, report in zip("),
    ),
)
