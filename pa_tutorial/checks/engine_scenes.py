"""The scenes that the engine must play as each request alone does; blocks hold 4 tokens."""

from pa_tutorial.checks.script import scripts

SCENES = scripts("""
== many requests share a step, and each gets its own tokens

one_request
Each new token is fed back at its position, and all before it are in the cache.
    add a "The for statement" max_tokens=12; step; blocks_used = 5; run; num_steps = 12

many_requests_of_different_length stage=paged_gather
A row of the batch was taken for another: of tokens, block tables, seq_lens, or scores.
    add "request 0" T max_tokens=6 ignore_eos=True
    add "request 1" The max_tokens=9 ignore_eos=True
    add "request 2" else max_tokens=12 ignore_eos=True
    add "request 3" raise max_tokens=15 ignore_eos=True
    add "request 4" "The while statement" max_tokens=18 ignore_eos=True
    run; num_steps = 18

late_arrivals
Rows that decode and rows that prefill changed places in the batch.
    add a "The for statement" max_tokens=12; step 3
    add b "Assignment statements" max_tokens=8; step 2
    add c The max_tokens=8; run; num_steps = 13

== a prompt is computed in several steps

prompt_in_chunks chunk_size=5
A chunk restarted at position 0 or at the first slot, or its first row was sampled.
    add a "The while statement is used" max_tokens=8  # 27 tokens: 6 chunks
    add b The max_tokens=8  # it decodes while a, which is older, prefills
    run; num_steps = 13; most_tokens_in_a_step = 8

token_budget_shared token_budget=8 stage=paged_gather
A step computed more tokens than the budget, or a prompt was cut where the budget ended.
    add a "The for" max_tokens=10
    add b "The while statement" max_tokens=6
    add c Assignment max_tokens=6
    run; most_tokens_in_a_step = 8

== blocks of a known prefix are shared, not computed

shared_prefix
The tokens after a known prefix start where it ends: position, slot and row.
    add a "The for statement is" max_tokens=4; run
    add b "The for loop" max_tokens=10; run; tokens_in_the_cache = 8

whole_prompt_in_the_cache stage=paged_gather
The last token of the prompt must be computed even so: without a query, no next token.
    add a "The while statement." max_tokens=8; run
    add b "The while statement." max_tokens=8; run; tokens_in_the_cache = 19

same_prompt_twice_in_one_step
Attention must come after all K and V of the step: one sequence reads another's.
    add a "The while statement is" max_tokens=8
    add b "The while statement is" max_tokens=8
    step; blocks_used = 7; tokens_in_the_cache = 20

two_prompts_that_differ_early
Equal tokens in a block are not enough: all before them must be equal too.
    add a "The for statement is" max_tokens=8; run
    add b "The not statement is" max_tokens=8; run; tokens_in_the_cache = 4

== blocks run out: the youngest gives up its own

preemption num_blocks=12 prefix_caching=False
A preempted request computes all its tokens again, also those that it had generated.
    add a "The a statement" max_tokens=16 ignore_eos=True
    add b "The b statement" max_tokens=16 ignore_eos=True
    add c "The c statement" max_tokens=16 ignore_eos=True
    run; was_preempted = True

preempted_while_prefilling num_blocks=13 chunk_size=5 stage=paged_gather
A request that was preempted in the middle of its prompt starts the prompt again.
    add a "The for" max_tokens=20; step
    add b "A while" max_tokens=20; step
    add c "Assignment statements" max_tokens=10; run; was_preempted = True

== first come, first served

the_oldest_is_served_first num_blocks=9 prefix_caching=False
The oldest always has a place in the step; it is the youngest that gives up its blocks.
    add a "The a" max_tokens=14 ignore_eos=True; add b "The b" max_tokens=14 ignore_eos=True
    add c "The c" max_tokens=14 ignore_eos=True; add d "The d" max_tokens=14 ignore_eos=True
    run; preemptions = 0 1 1 2; finished = 0 1 2 3

nobody_overtakes max_num_seqs=2
A request that finds no place waits, and no younger one overtakes it.
    add a "The for statement" max_tokens=4
    add b The max_tokens=12 ignore_eos=True
    add "two of c" "The while" max_tokens=3 num_samples=2 temperature=1.0
    add d if max_tokens=2
    run; finished = 0 1 2 3

watermark num_blocks=12 watermark=4 prefix_caching=False
A request is let in only if the watermark stays free for those that run.
    add a "The for" max_tokens=5
    add b "The while statement" max_tokens=5 ignore_eos=True
    add c "The if" max_tokens=5
    step; num_running = 2; blocks_used = 7

== several answers to one prompt share its blocks

parallel_samples stage=paged_gather
Each sample draws numbers of its own, and those depend on nothing else.
    add a "The for statement" max_tokens=8 num_samples=3 temperature=1.0 seed=1; step 2
    add b "The while" max_tokens=16 temperature=1.5 top_k=4 top_p=0.9 seed=6; run
    # Written down: the other side of this check draws by our choose_token, too. Any of the three
    # left out or in another order, or one token more or less among the top_k, gives other words.
    newest_answer = 10 32 32 32 32 32 32 32 114 101 116 117 114 110 32 118  # b"\\n       return v"

parallel_samples_preempted num_blocks=12
A sample that was preempted has K and V of its own tokens to compute, not those of its twin.
    add a "The for statement" max_tokens=16 num_samples=3 temperature=1.0 seed=4
    run; was_preempted = True

copy_of_the_last_block
The last block is shared and not full: all samples but one copy it before they write.
    add a "The for statement is" max_tokens=1; run  # its blocks stay in the cache
    add b "The for statement" max_tokens=6 num_samples=3 temperature=1.0 seed=3
    step; blocks_used = 5; step; blocks_used = 7; run; blocks_copied = 2

copies_in_a_chain
A block that was copied is free at once, and in the same step a copy is made into it.
    add a The max_tokens=6 num_samples=2  # greedy: both fill their block alike
    add b if max_tokens=6 num_samples=2
    step 2; blocks_copied = 2; run

== a request ends before its last token

stop_token
The token that ends an answer is kept, and no token follows it.
    add a "The for statement" max_tokens=20 stop_tokens=(101,)  # the letter e
    add b "The for statement" max_tokens=20
    run

end_of_the_text
The model's own end token ends an answer, unless the request ignores it.
    add a "x = 1 is an assignment statement" max_tokens=24
    add b "x = 1 is an assignment statement" max_tokens=24 ignore_eos=True
    run

cancelled
A cancelled request keeps what it has, gives back its blocks, and disturbs nobody.
    add a "The for statement" max_tokens=12; add b "The for statement" max_tokens=12
    step 4; cancel a 4; run
    add c "The for statement" max_tokens=12; run

refused_alone num_blocks=8
A request that can never be served is refused when it arrives, and alone.
    add a "The for statement" max_tokens=8
    refused "The with statement is used to wrap the execution" max_tokens=1  # longer than the pool
    refused The max_tokens=0; refused "" max_tokens=4
    add b "The while" max_tokens=8; run

== a step fails, and nobody loses anything

a_step_that_fails
K and V of a failed step were never written: nobody may find its blocks by their names.
    add a "The for statement" max_tokens=8 ignore_eos=True; step 2
    add b "The while statement" max_tokens=8 ignore_eos=True; raises; run
    num_steps = 12  # two, the failed one, one for each alone, and seven together

a_request_that_always_fails stage=paged_gather
A request is blamed only for a step that fails with it alone.
    add a "The for statement" max_tokens=8
    add b "The ~ statement" max_tokens=8
    add c "The if statement" max_tokens=8
    raises_for ~; must_end_with_an_error b; run

nan_scores
NaN chooses no token: the step of this request is repeated, not its answer.
    add a "The for statement" max_tokens=8; add b "The while statement" max_tokens=8
    step 3; nan_scores; run
""")
