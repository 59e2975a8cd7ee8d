"""The scenes that the engine must play as each request alone does; blocks hold 4 tokens."""

from typing import Any

from pa_tutorial.checks.scene import scene

# What a scene isolates; scenes that isolate the same share a row in the table of results.
BATCH = "many requests share a step, and each gets its own tokens"
CHUNKS = "a prompt is computed in several steps"
PREFIX = "blocks of a known prefix are shared, not computed"
PREEMPTION = "blocks run out: the youngest gives up its own"
ORDER = "first come, first served"
SAMPLES = "several answers to one prompt share its blocks"
ENDS = "a request ends before its last token"
TROUBLE = "a step fails, and nobody loses anything"

LONG = "The with statement is used to wrap the execution"  # 48 tokens: 12 blocks


@scene(BATCH, "Each new token is fed back at its position, and all before it are in the cache.")
def one_request(play: Any) -> None:
    play.add("a", "The for statement", max_tokens=12)
    play.step()
    play.fact("blocks_used", 5)
    play.run()
    play.fact("num_steps", 12)


@scene(
    BATCH,
    "A row of the batch was taken for another: of tokens, block tables, seq_lens, or scores.",
    stage="paged_gather",
)
def many_requests_of_different_length(play: Any) -> None:
    for index, prompt in enumerate(("T", "The", "else", "raise", "The while statement")):
        play.add(f"request {index}", prompt, max_tokens=6 + 3 * index, ignore_eos=True)
    play.run()
    play.fact("num_steps", 18)


@scene(BATCH, "Rows that decode and rows that prefill changed places in the batch.")
def late_arrivals(play: Any) -> None:
    play.add("a", "The for statement", max_tokens=12)
    play.step(3)
    play.add("b", "Assignment statements", max_tokens=8)
    play.step(2)
    play.add("c", "The", max_tokens=8)
    play.run()
    play.fact("num_steps", 13)


@scene(
    CHUNKS,
    "A chunk restarted at position 0 or at the first slot, or its first row was sampled.",
    chunk_size=5,
)
def prompt_in_chunks(play: Any) -> None:
    play.add("a", "The while statement is used", max_tokens=8)  # 27 tokens: 6 chunks
    play.add("b", "The", max_tokens=8)  # it decodes while a, which is older, prefills
    play.run()
    play.fact("num_steps", 13)
    play.fact("most_tokens_in_a_step", 8)


@scene(
    CHUNKS,
    "A step computed more tokens than the budget, or a prompt was cut where the budget ended.",
    token_budget=8,
    stage="paged_gather",
)
def token_budget_shared(play: Any) -> None:
    play.add("a", "The for", max_tokens=10)
    play.add("b", "The while statement", max_tokens=6)
    play.add("c", "Assignment", max_tokens=6)
    play.run()
    play.fact("most_tokens_in_a_step", 8)


@scene(PREFIX, "The tokens after a known prefix start where it ends: position, slot and row.")
def shared_prefix(play: Any) -> None:
    play.add("a", "The for statement is", max_tokens=4)
    play.run()
    play.add("b", "The for loop", max_tokens=10)
    play.run()
    play.fact("tokens_in_the_cache", 8)


@scene(
    PREFIX,
    "The last token of the prompt must be computed even so: without a query, no next token.",
    stage="paged_gather",
)
def whole_prompt_in_the_cache(play: Any) -> None:
    play.add("a", "The while statement.", max_tokens=8)
    play.run()
    play.add("b", "The while statement.", max_tokens=8)
    play.run()
    play.fact("tokens_in_the_cache", 19)


@scene(PREFIX, "Attention must come after all K and V of the step: one sequence reads another's.")
def same_prompt_twice_in_one_step(play: Any) -> None:
    play.add("a", "The while statement is", max_tokens=8)
    play.add("b", "The while statement is", max_tokens=8)
    play.step()
    play.fact("blocks_used", 7)
    play.fact("tokens_in_the_cache", 20)


@scene(PREFIX, "Equal tokens in a block are not enough: all before them must be equal too.")
def two_prompts_that_differ_early(play: Any) -> None:
    play.add("a", "The for statement is", max_tokens=8)
    play.run()
    play.add("b", "The not statement is", max_tokens=8)
    play.run()
    play.fact("tokens_in_the_cache", 4)


@scene(
    PREEMPTION,
    "A preempted request computes all its tokens again, also those that it had generated.",
    num_blocks=12,
    prefix_caching=False,
)
def preemption(play: Any) -> None:
    for name in "abc":
        play.add(name, f"The {name} statement", max_tokens=16, ignore_eos=True)
    play.run()
    play.fact("was_preempted", True)


@scene(
    PREEMPTION,
    "A request that was preempted in the middle of its prompt starts the prompt again.",
    num_blocks=13,
    chunk_size=5,
    stage="paged_gather",
)
def preempted_while_prefilling(play: Any) -> None:
    play.add("a", "The for", max_tokens=20)
    play.step()
    play.add("b", "A while", max_tokens=20)
    play.step()
    play.add("c", "Assignment statements", max_tokens=10)
    play.run()
    play.fact("was_preempted", True)


@scene(
    ORDER,
    "The oldest always has a place in the step; it is the youngest that gives up its blocks.",
    num_blocks=9,
    prefix_caching=False,
)
def the_oldest_is_served_first(play: Any) -> None:
    for name in "abcd":
        play.add(name, f"The {name}", max_tokens=14, ignore_eos=True)
    play.run()
    play.fact("preemptions", 0, 1, 1, 2)
    play.fact("finished", 0, 1, 2, 3)


@scene(
    ORDER,
    "A request that finds no place waits, and no younger one overtakes it.",
    max_num_seqs=2,
)
def nobody_overtakes(play: Any) -> None:
    play.add("a", "The for statement", max_tokens=4)
    play.add("b", "The", max_tokens=12, ignore_eos=True)
    play.add("two of c", "The while", max_tokens=3, num_samples=2, temperature=1.0)
    play.add("d", "if", max_tokens=2)
    play.run()
    play.fact("finished", 0, 1, 2, 3)


@scene(
    ORDER,
    "A request is let in only if the watermark stays free for those that run.",
    num_blocks=12,
    watermark=4,
    prefix_caching=False,
)
def watermark(play: Any) -> None:
    play.add("a", "The for", max_tokens=5)
    play.add("b", "The while statement", max_tokens=5, ignore_eos=True)
    play.add("c", "The if", max_tokens=5)
    play.step()
    play.fact("num_running", 2)
    play.fact("blocks_used", 7)


@scene(
    SAMPLES,
    "Each sample draws numbers of its own, and those depend on nothing else.",
    stage="paged_gather",
)
def parallel_samples(play: Any) -> None:
    play.add("a", "The for statement", max_tokens=8, num_samples=3, temperature=1.0, seed=1)
    play.step(2)
    play.add("b", "The while", max_tokens=16, temperature=1.5, top_k=4, top_p=0.9, seed=6)
    play.run()
    # Written down: the other side of this check draws by our choose_token, too. Any of the three
    # left out or in another order, or one token more or less among the top_k, gives other words.
    play.fact("newest_answer", *b"\n       return v")


@scene(
    SAMPLES,
    "A sample that was preempted has K and V of its own tokens to compute, not those of its twin.",
    num_blocks=12,
)
def parallel_samples_preempted(play: Any) -> None:
    play.add("a", "The for statement", max_tokens=16, num_samples=3, temperature=1.0, seed=4)
    play.run()
    play.fact("was_preempted", True)


@scene(
    SAMPLES,
    "The last block is shared and not full: all samples but one copy it before they write.",
)
def copy_of_the_last_block(play: Any) -> None:
    play.add("a", "The for statement is", max_tokens=1)  # its blocks stay in the cache
    play.run()
    play.add("b", "The for statement", max_tokens=6, num_samples=3, temperature=1.0, seed=3)
    play.step()
    play.fact("blocks_used", 5)
    play.step()
    play.fact("blocks_used", 7)
    play.run()
    play.fact("blocks_copied", 2)


@scene(
    SAMPLES,
    "A block that was copied is free at once, and in the same step a copy is made into it.",
)
def copies_in_a_chain(play: Any) -> None:
    play.add("a", "The", max_tokens=6, num_samples=2)  # greedy: both fill their block alike
    play.add("b", "if", max_tokens=6, num_samples=2)
    play.step(2)
    play.fact("blocks_copied", 2)
    play.run()


@scene(ENDS, "The token that ends an answer is kept, and no token follows it.")
def stop_token(play: Any) -> None:
    play.add("a", "The for statement", max_tokens=20, stop_tokens=(ord("e"),))
    play.add("b", "The for statement", max_tokens=20)
    play.run()


@scene(ENDS, "The model's own end token ends an answer, unless the request ignores it.")
def end_of_the_text(play: Any) -> None:
    play.add("a", "x = 1 is an assignment statement", max_tokens=24)
    play.add("b", "x = 1 is an assignment statement", max_tokens=24, ignore_eos=True)
    play.run()


@scene(ENDS, "A cancelled request keeps what it has, gives back its blocks, and disturbs nobody.")
def cancelled(play: Any) -> None:
    play.add("a", "The for statement", max_tokens=12)
    play.add("b", "The for statement", max_tokens=12)
    play.step(4)
    play.cancel("a", 4)
    play.run()
    play.add("c", "The for statement", max_tokens=12)
    play.run()


@scene(
    ENDS, "A request that can never be served is refused when it arrives, and alone.", num_blocks=8
)
def refused_alone(play: Any) -> None:
    play.add("a", "The for statement", max_tokens=8)
    play.refused(LONG, max_tokens=1)  # longer than the pool
    play.refused("The", max_tokens=0)
    play.refused("", max_tokens=4)
    play.add("b", "The while", max_tokens=8)
    play.run()


@scene(
    TROUBLE,
    "K and V of a failed step were never written: nobody may find its blocks by their names.",
)
def a_step_that_fails(play: Any) -> None:
    play.add("a", "The for statement", max_tokens=8, ignore_eos=True)
    play.step(2)
    play.add("b", "The while statement", max_tokens=8, ignore_eos=True)
    play.raises()
    play.run()
    play.fact("num_steps", 12)  # two, the failed one, one for each alone, and seven together


@scene(
    TROUBLE, "A request is blamed only for a step that fails with it alone.", stage="paged_gather"
)
def a_request_that_always_fails(play: Any) -> None:
    play.add("a", "The for statement", max_tokens=8)
    play.add("b", "The ~ statement", max_tokens=8)
    play.add("c", "The if statement", max_tokens=8)
    play.raises_for("~")
    play.must_end_with_an_error("b")
    play.run()


@scene(TROUBLE, "NaN chooses no token: the step of this request is repeated, not its answer.")
def nan_scores(play: Any) -> None:
    play.add("a", "The for statement", max_tokens=8)
    play.add("b", "The while statement", max_tokens=8)
    play.step(3)
    play.nan_scores()
    play.run()
