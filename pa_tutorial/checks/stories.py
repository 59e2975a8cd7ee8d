"""The stories that the memory manager must tell as plain lists do; blocks hold 4 tokens.

A pool has 10 blocks, unless a story says otherwise; block 0 is never given out.
"""

from pa_tutorial.checks.script import scripts

STORIES = scripts("""
== sequences grow and end, and their blocks serve others

token_by_token
A slot is block number * block_size + offset in the block.
    start a 1; append a 2; append a 3; append a 4; append a 5; append a 6; append a 7
    append a 8; append a 9; append a 10; used = 3

prompts_and_tokens
A block was given out twice, or a token went to the wrong slot.
    start a 1..6; start b 20..22
    append a 50; append b 70; append a 51; append b 71; append a 52; append b 72
    append a 53; append b 73; append a 54; append b 74; used = 5

blocks_are_reused
A freed block kept something, or was not given out again.
    start a 1..7; start b 20..26; free a
    start c 40..52; append b 60..62; used = 7

== forks share blocks until they write

fork_and_write
The last block is shared and not full: the first writer takes a copy, the second does not.
    start a 1..6; fork a b; used = 2
    append a 11; append b 12; append a 13..15; copied = 1; used = 4

fork_of_a_fork
A reference was counted wrongly.
    start a 1..6; fork a b; fork b c
    append b 20; free a; append c 30; append b 21 22; copied = 1; used = 4

three_writers
A reference count of 3 is shared too; the last writer needs no copy.
    start a 1..6; fork a b; fork a c
    append b 20; append c 21; append a 22; copied = 2; used = 4

full_blocks_are_not_copied
A full block is never written again, so it needs no copy.
    start a 1..8; fork a b; append a 11; append b 12; copied = 0; used = 4

an_empty_append
Without new tokens nothing is taken, and nothing is copied.
    start a 1..6; fork a b; append b; last_cached = 0; copied = 0; used = 2

== there are too few blocks, so nothing may change

exhaustion_in_copy_on_write num_blocks=4
Count what the whole operation needs before you change anything.
    start a 1..10; fork a b
    refused OutOfBlocks append a 20; refused OutOfBlocks append b 30..34
    free b; append a 20

exhaustion_after_the_copy num_blocks=5
Count what the whole operation needs before you change anything.
    start a 1..10; fork a b; refused OutOfBlocks append b 30..34; append b 30

exhaustion_in_a_prompt num_blocks=5
Count what the whole operation needs before you change anything.
    start a 1..5
    refused OutOfBlocks start b 30..38; refused OutOfBlocks start b 1..4 30..38
    start b 1..4 30..33

no_room_to_swap_in num_blocks=5
Count what the whole operation needs before you change anything.
    start a 1..7; swap a host; start b 20..31; refused OutOfBlocks swap a device
    free b; swap a device

== may a sequence start: now, later or never

admission num_blocks=10 watermark=2
Starting must leave `watermark` blocks free; never: it could not even in an empty pool.
    start a 1..12
    may_start 4 now; may_start 5 later; may_start 7 later; may_start 8 never
    free a; may_start 7 now

== a sequence goes to the host pool and comes back

swap_out_and_in num_blocks=8
Block numbers of one pool mean nothing in the other one.
    start a 1..6; start b 20..26; swap a host; start c 40..48
    append b 27 28; free c; swap a device; append a 7..9; used = 6

== blocks slide out of a window

sliding_window
Only blocks that no later query can see may be let go.
    start a 1..6; append a 7; slide a 6; append a 8; slide a 6; append a 9; slide a 6
    append a 10; slide a 6; append a 11; slide a 6; append a 12; slide a 6; append a 13; slide a 6
    append a 14; slide a 6; append a 15; slide a 6; append a 16; slide a 6; append a 17; slide a 6
    used = 3; fork a b; append b 40; used = 4

a_window_that_leaps
Count the blocks that lie wholly before it.
    start a 1..17; slide a 6; used = 3
    start b 40..49; slide b 6; used = 5
    free a; free b; used = 0

== misuse is refused

freed_sequences
A freed sequence has no blocks; using it must be an error.
    start a 1..6; fork a b; free b
    refused UseAfterFree append b 9; refused UseAfterFree fork b c; refused DoubleFree free b
    append a 7

blocks_that_nobody_holds
A block that is free, or is not in the pool, cannot be freed or shared.
    start a 1..4
    refused UnknownBlock free_block 0; refused UnknownBlock share_block 0
    refused UnknownBlock free_block -1; refused UnknownBlock share_block -1
    refused UnknownBlock free_block 10; refused UnknownBlock share_block 10
    refused DoubleFree free_block 5; refused UseAfterFree share_block 5

slide_and_swap_refused
What slid out cannot be moved; a window has a token.
    start a 1..9; refused ValueError slide a 0; slide a 2; refused ValueError swap a host

a_table_that_does_not_fit num_blocks=6
A table that is cut drops tokens silently.
    start a 1..13; refused TableTooLong make_batch 3

== equal prompts share blocks

shared_prompt
Full blocks with the same prefix are shared, also after their sequence ended.
    start a 1..10; start b 1..8 40 41; last_cached = 8; used = 4
    free a; start c 1..8 60; last_cached = 8

a_token_is_always_computed
Without the query of the last token there is no next token.
    start a 1..8; start b 1..8; last_cached = 7; used = 2; append b 9

decoding_into_a_known_block
A block that becomes full is looked up too.
    start a 1..8; start b 1..6; append b 7; append b 8  # now it equals a block of a
    append b 9; used = 3

shared_blocks_need_no_room num_blocks=4
A block that is held already takes nothing from the free ones.
    start a 1..8; start b 1..9; last_cached = 8; cached = 0

given_back_on_the_way num_blocks=4
When a block of the cache takes the place of the last one, that one is free for the rest.
    start x 1..4; start y 1..3; start z 99; append y 4 9; used = 3

== equal tokens, but another prefix or key

same_tokens_after_another_prefix
K and V depend on the whole prefix: the hash must chain over it.
    start a 1..4 50..53; start b 20..23 50..53; start c 50..53; last_cached = 0; used = 5

known_after_unknown
A block is found only through the one before it; after an unknown block none is.
    start a 1..4; start b 30..33 1..4; last_cached = 0; used = 3

other_extra_key
K and V depend on the extra key, an adapter's name for example.
    start a 1..8 extra=1; start b 1..8 extra=2; last_cached = 0
    start c 1..8 extra=1; last_cached = 7

both_are_found num_blocks=20
The hash must contain all that the comparison compares, or one hides the other.
    start a 1..4 50..53 extra=1; start b 20..23 50..53 extra=1; start c 1..8 extra=2
    start d 4 3 2 1; start e 1..4
    start f 20..23 50..53 1 extra=1; last_cached = 8
    start g 1..8 extra=2; last_cached = 7
    start h 1..4 9; last_cached = 4

== different blocks have the same hash

hash_collision hash_function=same_hash
A hash says where to look; the tokens must be compared.
    start a 1..9; start b 30..38; last_cached = 0; start c 1..9; last_cached = 4

collision_of_prefixes hash_function=hash_of_tokens
A hash says where to look; the tokens, what stands before, and the key are compared.
    start a 1..4 50..53; start b 20..23; append b 50..53; used = 4

collision_of_extra_keys hash_function=hash_of_tokens
A hash says where to look; the tokens, what stands before, and the key are compared.
    start a 1..4 extra=1; start b 1..5 extra=2; last_cached = 0

collision_of_order hash_function=same_hash
A hash says where to look; the tokens, what stands before, and the key are compared.
    start a 1..4; start b 30..33; append b 1..4; used = 3
    start c 4 3 2 1 9; last_cached = 0
    start d 1 9 9 9 9; last_cached = 0

nothing_after_an_unnamed_block hash_function=hash_of_last_token
After a collision a block has no name, and nothing behind it may get one.
    start a 1..4; start b 9 9 9 4 50..53; start c 50..53 7; last_cached = 0

== which block is evicted, and that it is forgotten

oldest_is_evicted_first num_blocks=4
The block that was freed longest ago is evicted first.
    start a 1..4; start b 20..23; free b; free a; cached = 2
    start c 40..47  # the third free block, then that of b
    start d 1..4; last_cached = 3; used = 3

deepest_is_evicted_first num_blocks=4
Ties: the block with the most tokens before it goes first, or the rest is of no use.
    start a 1..12; free a; start b 40..43  # takes the last of the three blocks of a
    free b; start c 1..9; last_cached = 8

a_block_in_use_is_not_evicted num_blocks=4
A block that is found again must leave the list of blocks to evict.
    start a 1..8; free a; start b 1..4 30  # brings the first block of a back to life
    start c 40..43; refused OutOfBlocks start d 60..63; used = 3

found_again_and_again num_blocks=4
Sharing a cached block must not change its name; letting go makes it the newest.
    start a 1..4; start b 20..23; free a; free b; start c 1..4; free c
    start d 40..47  # evicts the block of b
    start e 1..4; last_cached = 3

evicted_and_forgotten num_blocks=3
With the block its name must go, from every place where it is kept.
    start a 1..4; free a; start b 20..24; free b; cached = 1
    start c 40..47; free c; start d 1..5; last_cached = 0

== names after a fork, a swap or a slide

forks_have_their_own_names num_blocks=12
Each fork has its own names and the extra key of its parent.
    start a 1..6 extra=1; fork a b; append b 7 8; append a 17 18
    start c 1..9 extra=1; last_cached = 8
    start d 5..8 extra=1; last_cached = 0
    start e 1..6 17 18 9 extra=1; last_cached = 8

swapped_out_last_block_first num_blocks=4
Blocks are let go last first: a later one is of no use without the earlier ones.
    start a 1..12; swap a host; start b 40..43; free b; start c 1..9; last_cached = 8

names_after_a_swap num_blocks=4
After a swap the blocks have names in the new pool only.
    start a 1..6; swap a host; start b 40..51; free b; swap a device; append a 7 8
    start c 1..9; last_cached = 8; free c; start c 5..8; last_cached = 0

extra_keys_after_a_swap
The extra key moves with its sequence.
    start a 1..8 extra=1; start b 1..8 extra=2; swap a host; swap b host

slid_out_last_block_first num_blocks=7
Blocks are let go last first: a later one is of no use without the earlier ones.
    start a 1..17; slide a 6; start b 90..94; free a; start c 1..4 30; last_cached = 4

a_number_given_out_again num_blocks=5
A name must not point at a block number: after an eviction, the number means something else.
    start a 1..9; slide a 2; start b 7
    start c 30..33  # the block that a let go
    free b; append c 5..8  # what stands behind that block in a
    used = 4

a_number_and_a_hash_again num_blocks=5 hash_function=hash_of_last_token
Equal hashes are no proof that the same block stood before.
    start a 1..9; slide a 2; start b 7
    start c 30 31 32 4  # the same block number, and the same hash
    free b; append c 5..8; used = 4

== the cache is forgotten as a whole

reset_forgets_all num_blocks=6
reset forgets every name and loses no block; not while a sequence holds one.
    start a 1..8; refused BlocksInUse reset; free a; reset; cached = 0
    start b 1..9; last_cached = 0; free b; cached = 2; start c 30..49; used = 5
""")
