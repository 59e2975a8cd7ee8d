"""How well a kernel uses memory: transactions, sectors, lines, bank conflicts, from a trace.

The model, and what it leaves out:

- A *memory transaction* is one warp instruction that loads or stores. Inactive lanes don't
  count.
- Global memory moves in *sectors*, 32 bytes from a multiple of 32. Four of them make a *line* of
  128 bytes. A transaction touches each sector and line once, however many lanes need it. Its ideal
  is the smallest number that could hold the distinct bytes it needs. (Older guides split
  transactions of 8 and 16 bytes per lane into halves and quarters of the warp; here each is one.)
- Sectors per transaction aren't bytes from DRAM. A sector that two transactions touch counts twice
  here, though the second may find it in a cache. A half-used sector costs nothing extra if the
  other half is needed soon. On the other hand, DRAM may fetch more than the sector we load, and
  writing part of a sector may need a read.
- Shared memory has 32 *banks*; word number w (4 bytes) is in bank w % 32. In one *wavefront* each
  bank delivers one word, to all lanes that need it. So a transaction takes as many wavefronts as
  the busiest bank has distinct words to deliver; if that is more than the ideal, there is a bank
  conflict. Its degree is wavefronts / ideal; a table shows the largest degree of a transaction.
  Lanes that write one word share a wavefront.
- For shared accesses of 8 and 16 bytes per lane, NVIDIA hasn't published a rule that covers all
  cases. Two are common: all lanes of the warp at once ("wavefronts"), or one part of the warp
  after the other, halves for 8 bytes and quarters for 16 ("in parts"). Both are counted.
- Atomic operations on global memory count their transactions, sectors and lines. Lanes with the
  same address may be served one after the other, which isn't counted. Atomics on shared memory
  appear only in the tables of instructions and of bytes.
- Each allocation of the caller begins at a multiple of 256 bytes, as with cudaMalloc. A slice
  keeps its distance from the start, like a slice of a device array. (Numba copies a slice of a
  host array to a new allocation.)
- Local arrays are in registers if the compiler knows every index, and otherwise in the lane's local
  memory. Only their bytes are counted.
- trace.py says which lanes execute together after a branch or a loop. A compiler may arrange them
  differently.
- We count what the kernel's source says. The compiler may join, move or drop accesses: some of
  this shows in `ptx`, all of it only in a GPU's counters.

Source: CUDA C++ Programming Guide, "Global Memory" and "Shared Memory" of compute capability
5.x and later; CUDA C++ Best Practices Guide, "Coalesced Access to Global Memory".
"""

import numpy as np

from simt.tables import Table
from simt.trace import KINDS, SPACES, Trace

SECTOR = 32  # bytes
LINE = 128  # bytes
WORD = 4  # bytes
NUM_BANKS = 32
MAX_PARTS = 4  # of a warp, for accesses of 16 bytes per lane

COSTS = ("sectors", "ideal_sectors", "wavefronts", "ideal")
REDUCE = {"lanes": np.mean, "degree": np.max}  # a column's first word; all others are summed

NOT_DRAM = (
    "(sectors are counted per transaction. They aren't bytes from DRAM: a second transaction may\n"
    " find its sector in a cache)"
)
TWO_RULES = (
    "(in parts: half a warp at a time for 8 bytes per lane, a quarter for 16. NVIDIA hasn't\n"
    " published which rule holds; up to 4 bytes they agree)"
)


def global_traffic(trace: Trace) -> Table:
    """Transactions, sectors and lines of global memory, per expression of the kernel."""
    transactions = _Transactions(_only(trace, "global"))
    sectors, lines = transactions.distinct(SECTOR), transactions.distinct(LINE)
    bytes_wanted = transactions.bytes_wanted()
    columns = {
        "sectors": sectors,
        "ideal sectors": _pieces(bytes_wanted, SECTOR),
        "lines": lines,
        "ideal lines": _pieces(bytes_wanted, LINE),
    }
    return transactions.table(trace, "Global memory", "transactions", columns, NOT_DRAM)


def different_sectors(trace: Trace) -> int:
    """Distinct sectors of global memory: what a cache that never evicts would load."""
    _, sector = units(_only(trace, "global"), SECTOR)
    return len(np.unique(sector))


def shared_traffic(trace: Trace) -> Table:
    """Transactions, wavefronts and conflicts of shared memory, per expression of the kernel.

    The second rule gets columns if an access is wider than a word. Atomic operations are left out;
    `instructions` and `bytes_by_space` have them.
    """
    shared = _only(trace, "shared")
    records = shared[shared.kind != KINDS.index("atomic")]
    transactions = _Transactions(records)
    columns, note = _wavefronts(transactions, np.zeros(len(records), int), ""), ""
    if np.any(records.num_bytes > WORD):
        parts = records.lane * np.maximum(records.num_bytes // WORD, 1) // NUM_BANKS
        columns |= _wavefronts(transactions, parts, " in parts")
        note = TWO_RULES
    return transactions.table(trace, "Shared memory", "transactions", columns, note)


def costs(trace: Trace) -> dict[str, np.ndarray]:
    """What each warp instruction of a trace costs, in order: its columns in the tables above.

    Instructions that don't access such memory have 0. "wavefronts", "ideal": by the first rule.
    """
    numbers = np.unique(_only(trace).instruction)
    found = {name: np.zeros(len(numbers), int) for name in COSTS}
    transactions = _Transactions(_only(trace, "global"))
    here = np.searchsorted(numbers, np.unique(transactions.records.instruction))
    found["sectors"][here] = transactions.distinct(SECTOR)
    found["ideal_sectors"][here] = _pieces(transactions.bytes_wanted(), SECTOR)
    shared = _only(trace, "shared")
    transactions = _Transactions(shared[shared.kind != KINDS.index("atomic")])
    here = np.searchsorted(numbers, np.unique(transactions.records.instruction))
    columns = _wavefronts(transactions, np.zeros(len(transactions.records), int), "")
    found["wavefronts"][here], found["ideal"][here] = columns["wavefronts"], columns["ideal"]
    return found


def bytes_by_space(trace: Trace) -> Table:
    """Bytes that the lanes access, by space and kind; bytes that two lanes share count twice."""
    records, rows = _only(trace), []
    for number, space in enumerate(SPACES):
        for kind in ("read", "write", "atomic"):
            these = records[(records.space == number) & (records.kind == KINDS.index(kind))]
            if space != "none" and len(these):
                instructions = len(np.unique(these.instruction))
                rows.append((space, kind, instructions, int(these.num_bytes.sum(dtype=int))))
    columns = ("space", "does", "instructions", "bytes")
    return Table("Bytes", columns, tuple(rows), ("instructions", "bytes"))


def instructions(trace: Trace) -> Table:
    """Warp instructions that access memory, shuffle, vote or wait, per expression.

    Arithmetic isn't in the trace.
    """
    return _Transactions(_only(trace)).table(trace, "Warp instructions", "instructions", {})


def _only(trace: Trace, space: str | None = None) -> np.recarray:
    if not isinstance(trace, Trace):
        raise TypeError(f"trace is a {type(trace).__name__}; pass launch(..., trace=0).trace")
    return trace.only(space=space).records


def units(records: np.recarray, size: int) -> tuple[np.ndarray, np.ndarray]:
    """(record, unit) for every aligned unit of `size` bytes that a record touches."""
    first = records.address // size
    last = (records.address + records.num_bytes - 1) // size
    counts = last - first + 1
    record = np.repeat(np.arange(len(first)), counts)
    within = np.arange(len(record)) - np.repeat(np.cumsum(counts) - counts, counts)
    return record, first[record] + within


class _Transactions:
    """The warp instructions of some records; arrays have one number per instruction.

    of  [num_records] the transaction that a record belongs to
    """

    def __init__(self, records: np.recarray) -> None:
        self.records = records
        _, first, self.of = np.unique(records.instruction, return_index=True, return_inverse=True)
        self.place, self.kind = records.place[first], records.kind[first]
        self.lanes = np.bincount(self.of, minlength=len(first))

    def __len__(self) -> int:
        return len(self.place)

    def distinct(self, size: int) -> np.ndarray:
        """How many distinct units of `size` bytes each transaction touches."""
        record, unit = units(self.records, size)
        transaction, _ = _different(self.of[record], unit)
        return np.bincount(transaction, minlength=len(self))

    def bytes_wanted(self) -> np.ndarray:
        """How many distinct bytes each transaction accesses."""
        edges = np.concatenate([self.records.address, self.records.num_bytes])
        grain = max(int(np.gcd.reduce(edges)), 1)  # no access begins or ends within one
        return self.distinct(grain) * grain

    def table(
        self, trace: Trace, title: str, what: str, columns: dict[str, np.ndarray], note: str = ""
    ) -> Table:
        """One row per expression and kind: how many (`what`), their lanes, and the columns.

        Lanes are a mean, degrees a maximum, everything else a sum.
        """
        columns = {what: np.ones(len(self), int), "lanes": self.lanes, **columns}
        reduce = {name: REDUCE.get(name.split()[0], np.sum) for name in columns}
        rows = []
        pairs = {*zip(self.place.tolist(), self.kind.tolist(), strict=True)}
        for place, kind in sorted(pairs, key=lambda row: _reading_order(trace, row)):
            here = (self.place == place) & (self.kind == kind)
            site = trace.sites[place]
            numbers = [reduce[name](values[here]).item() for name, values in columns.items()]
            rows.append((site.function, site.line, site.text, KINDS[kind], *numbers))
        names = ("in", "line", "expression", "does", *columns)
        if len({row[0] for row in rows}) < 2:  # all in the kernel
            rows, names = [row[1:] for row in rows], names[1:]
        sums = tuple(name for name in columns if reduce[name] is np.sum)
        return Table(f"{title}: {trace.kernel}", names, tuple(rows), sums, note)


def _reading_order(trace: Trace, row: tuple[int, int]) -> tuple:
    """The kernel first, then the functions that it calls, each in the order of its lines."""
    site = trace.sites[row[0]]
    return site.function != trace.kernel, site.function, site.line, row


def _wavefronts(transactions: _Transactions, parts: np.ndarray, rule: str) -> dict[str, np.ndarray]:
    """Columns of one rule. parts [num_records]: which part each lane is in, 0 to MAX_PARTS - 1."""
    record, word = units(transactions.records, WORD)
    together = transactions.of[record] * MAX_PARTS + parts[record]
    together, word = _different(together, word)
    num_groups = len(transactions) * MAX_PARTS
    banks, words_of_bank = np.unique(together * NUM_BANKS + word % NUM_BANKS, return_counts=True)
    busiest = np.zeros(num_groups, int)
    np.maximum.at(busiest, banks // NUM_BANKS, words_of_bank)
    words = np.bincount(together, minlength=num_groups)
    wavefronts = busiest.reshape(-1, MAX_PARTS).sum(axis=1)
    ideal = _pieces(words, NUM_BANKS).reshape(-1, MAX_PARTS).sum(axis=1)
    degree = wavefronts / np.maximum(ideal, 1)
    return {f"wavefronts{rule}": wavefronts, f"ideal{rule}": ideal, f"degree{rule}": degree}


def _different(group: np.ndarray, unit: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Each pair (group, unit) once, sorted."""
    order = np.lexsort((unit, group))
    group, unit = group[order], unit[order]
    new = np.ones(len(group), bool)
    new[1:] = (np.diff(group) != 0) | (np.diff(unit) != 0)
    return group[new], unit[new]


def _pieces(amount: np.ndarray, size: int) -> np.ndarray:
    """How many pieces of this size it takes to hold the amount."""
    return -(-amount // size)
