"""The sizes of v1, as notebooks 10 and 11 compute them: plain Python."""

WARP_SIZE = 32


def group_sizes(HEAD_SIZE, BLOCK_SIZE, itemsize):
    THREAD_GROUP_SIZE = max(WARP_SIZE // BLOCK_SIZE, 1)
    VEC_SIZE = max(16 // (THREAD_GROUP_SIZE * itemsize), 1)
    NUM_VECS_PER_THREAD = HEAD_SIZE // (THREAD_GROUP_SIZE * VEC_SIZE)
    return THREAD_GROUP_SIZE, VEC_SIZE, NUM_VECS_PER_THREAD


def row_sizes(HEAD_SIZE, BLOCK_SIZE, itemsize):  # itemsize: bytes of an element
    V_VEC_SIZE = 16 // itemsize
    NUM_V_VECS_PER_ROW = BLOCK_SIZE // V_VEC_SIZE
    NUM_ROWS_PER_ITER = WARP_SIZE // NUM_V_VECS_PER_ROW
    NUM_ROWS_PER_THREAD = -(-HEAD_SIZE // NUM_ROWS_PER_ITER)  # rounded up
    return V_VEC_SIZE, NUM_V_VECS_PER_ROW, NUM_ROWS_PER_ITER, NUM_ROWS_PER_THREAD
