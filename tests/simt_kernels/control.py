"""Branches and loops that the lanes of a warp take differently."""

import numpy as np
from numba import cuda

from simt_kernels.example import example

N = 100  # two blocks of 64 threads, the second one not full


def numbers(rng):
    return rng.integers(-50, 50, N, np.int32)


def each(answer, *draws):
    """An example on arrays of N numbers; answer makes one number of one number from each of them.

    Out, the last argument, is int32 and holds 99 where nothing is written.
    """

    def arguments(rng):
        return *[draw(rng) for draw in draws], np.full(N, 99, np.int32)

    def answers(*args):
        lists = [array.tolist() for array in args[:-1]]
        return {len(draws): np.array([answer(*row) for row in zip(*lists, strict=True)], np.int32)}

    return example(2, 64, arguments, answers)


def branch(x):
    return "negative" if x < 0 else "zero" if x == 0 else "odd" if x % 2 else "even"


@each(lambda x: {"negative": -x, "zero": 7, "odd": 3 * x + 1, "even": x // 2}[branch(x)], numbers)
@cuda.jit
def if_elif_else(a, out):
    i = cuda.grid(1)
    if i < N:
        if a[i] < 0:
            out[i] = -a[i]
        elif a[i] == 0:
            out[i] = 7
        elif a[i] % 2 == 1:
            out[i] = 3 * a[i] + 1
        else:
            out[i] = a[i] // 2


@each(lambda x: sum(x * r + c for r in range(x % 5) for c in range(r, x % 7)), numbers)
@cuda.jit
def nested_loops_of_divergent_lengths(a, out):
    i = cuda.grid(1)
    if i < N:
        total = 0
        for row in range(a[i] % 5):
            for column in range(row, a[i] % 7):
                total += a[i] * row + column
        out[i] = total


@each(lambda x: 0 if x <= 0 else x.bit_length(), numbers)
@cuda.jit
def while_of_divergent_length(a, out):
    i = cuda.grid(1)
    if i < N:
        rest = a[i]
        halvings = 0
        while rest > 0:
            rest //= 2
            halvings += 1
        out[i] = halvings


@each(lambda x: next((d for d in range(2, 52) if x % d), 0), numbers)
@cuda.jit
def break_leaves_the_inner_loop_only(a, out):
    i = cuda.grid(1)
    if i < N:
        smallest = 0
        for sign in range(-1, 2, 2):
            for divisor in range(2, 52):
                if (sign * a[i]) % divisor != 0:
                    smallest += divisor
                    break
        out[i] = smallest // 2


@each(lambda x: sum(k for k in range(20) if (x + k) % 3), numbers)
@cuda.jit
def continue_skips_a_pass(a, out):
    i = cuda.grid(1)
    if i < N:
        total = 0
        for k in range(20):
            if (a[i] + k) % 3 == 0:
                continue
            total += k
        out[i] = total


@each(lambda x: x + 1, numbers)
@cuda.jit
def tail_threads_return_early(a, out):
    i = cuda.grid(1)
    if i >= out.size:
        return
    out[i] = a[i] + 1


@each(lambda x: min((k for k in range(12) if k * k > x), default=99), numbers)
@cuda.jit
def return_inside_a_loop(a, out):
    i = cuda.grid(1)
    if i < N:
        for k in range(12):
            if k * k > a[i]:
                out[i] = k
                return


def neighbours(a, out):
    inner = (a[:-2] < a[1:-1]) & (a[2:] < a[1:-1])
    return {1: np.concatenate([[0], inner, [0]]).astype(np.int32)}


@example(2, 64, lambda rng: (numbers(rng), np.full(N, 99, np.int32)), neighbours)
@cuda.jit
def and_reads_no_further(a, out):
    i = cuda.grid(1)
    if i < N:
        peak = i > 0 and i + 1 < N and a[i - 1] < a[i] and a[i + 1] < a[i]
        out[i] = 1 if peak else 0


def stops(a, out):
    return {1: np.append(a[1:] == a[:-1] + 1, True).astype(np.int32)}


@example(2, 64, lambda rng: (numbers(rng) // 25, np.full(N, 99, np.int32)), stops)
@cuda.jit
def or_reads_no_further(a, out):
    i = cuda.grid(1)
    if i < N:
        if i + 1 == N or a[i + 1] == a[i] + 1:
            out[i] = 1
        else:
            out[i] = 0


@each(lambda x, y: (x in range(-20, y)) + 2 * (not (0 <= x <= y)), numbers, numbers)
@cuda.jit
def chained_comparisons(a, b, out):
    i = cuda.grid(1)
    if i < N:
        inside = 1 if -20 <= a[i] < b[i] else 0
        outside = 0 if 0 <= a[i] <= b[i] else 2
        out[i] = inside + outside


@each(np.gcd, numbers, numbers)
@cuda.jit
def tuple_assignment_swaps(a, b, out):
    i = cuda.grid(1)
    if i < N:
        x, y = abs(a[i]), abs(b[i])
        while y != 0:
            x, y = y, x % y
        out[i] = x


@each(lambda x: (((((x + 5) * 3 - 7) // 2 % 23) << 3 | 5) & 61 ^ 9) >> 1, numbers)
@cuda.jit
def augmented_assignments(a, out):
    i = cuda.grid(1)
    if i < N:
        out[i] = a[i]
        out[i] += 5
        x = out[i]
        x *= 3
        x -= 7
        x //= 2
        x %= 23
        x <<= 3
        x |= 5
        x &= 61
        x ^= 9
        x >>= 1
        out[i] = x


@each(lambda x, y: sum(range(x, y, 3)) - 2 * sum(range(x, y, -4)), numbers, numbers)
@cuda.jit
def ranges_of_each_lane_up_down_and_empty(a, b, out):
    i = cuda.grid(1)
    if i < N:
        total = 0
        for k in range(a[i], b[i], 3):
            total += k
        for k in range(a[i], b[i], -4):
            total -= 2 * k
        out[i] = total


@each(lambda x: x % 4 - 1 if x % 4 else -8, numbers)
@cuda.jit
def loop_variable_keeps_its_last_value(a, out):
    i = cuda.grid(1)
    if i < N:
        k = -8
        for k in range(a[i] % 4):  # noqa: B007
            pass
        out[i] = k


@each(lambda x: x * x if x > 0 else 5, numbers)
@cuda.jit
def variable_of_one_branch(a, out):
    i = cuda.grid(1)
    if i < N:
        positive = a[i] > 0
        if positive:
            square = a[i] * a[i]
        out[i] = 5
        if positive:
            out[i] = square


@example(1, 64, lambda rng: (np.arange(64) % 3, np.zeros(64)), lambda t, out: {1: 23 + t * 4 + 5})
@cuda.jit
def loop_over_a_tuple_and_index_by_lane(which, out):
    t = cuda.threadIdx.x
    total = 0
    for part in (16, 4, 3):
        total += part
    out[t] = total + (5, 9, 13)[which[t]]
