"""A table of numbers with a title, for a notebook or a terminal."""

from dataclasses import dataclass

Cell = int | float | str


@dataclass(frozen=True)
class Table:
    """Rows under named columns, some of them of words; printed with sums in the last row.

    sums  columns that can be added up
    note  what a reader must know, printed below the table
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    sums: tuple[str, ...] = ()
    note: str = ""

    def column(self, name: str) -> list[Cell]:
        """The cells of a column. Raises KeyError if there is no such column."""
        if name not in self.columns:
            raise KeyError(f"there is no column {name!r}; the columns: {', '.join(self.columns)}")
        at = self.columns.index(name)
        return [row[at] for row in self.rows]

    def total(self, name: str) -> Cell:
        """The sum of a column. Raises ValueError for a mean or a maximum."""
        if name not in self.sums:
            raise ValueError(f"{name!r} cannot be added up; these can: {', '.join(self.sums)}")
        return sum(self.column(name))

    def __str__(self) -> str:
        if not self.rows:
            return f"{self.title}: nothing"
        rows = [list(map(_in_words, row)) for row in self.rows]
        left = [isinstance(cell, str) for cell in self.rows[0]]
        if len(rows) > 1 and self.sums:
            rows.append([_in_words(self.total(c)) if c in self.sums else "" for c in self.columns])
            rows[-1][left.index(True)] = "in all"  # the first column of words
        heads = _heads(self.columns)
        widths = [max(map(len, column)) for column in zip(*heads, *rows, strict=True)]
        lines = [
            "  ".join(
                cell.ljust(width) if to_left else cell.rjust(width)
                for cell, width, to_left in zip(line, widths, left, strict=True)
            ).rstrip()
            for line in (*heads, *rows)
        ]
        lines.insert(len(heads), "-" * max(map(len, lines)))
        return "\n".join([self.title, *lines, *([self.note] if self.note else [])])

    __repr__ = __str__


def _heads(names: tuple[str, ...]) -> list[tuple[str, ...]]:
    """The names of the columns, on two lines if any of them has several words."""
    parts = [name.split(" ", 1) for name in names]
    if all(len(part) == 1 for part in parts):
        return [names]
    return [tuple(p[0] if len(p) > 1 else "" for p in parts), tuple(p[-1] for p in parts)]


def _in_words(cell: Cell) -> str:
    if isinstance(cell, str):
        return cell
    return f"{cell:,.1f}" if cell != int(cell) else f"{int(cell):,}"
