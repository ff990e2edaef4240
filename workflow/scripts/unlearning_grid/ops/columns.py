"""Tables of text: columns, rules, short numbers."""

from collections.abc import Sequence


def columns(rows: Sequence[Sequence[str]], left: int = 1, last: bool = False) -> list[str]:
    """Rows as lines of equal columns.

    Args:
        left: how many of the first columns stand to the left; the others stand to the right.
        last: whether the last one stands to the left, too.
    """
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [
            cell.ljust(width) if i < left or (last and i == len(row) - 1) else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return lines


def ruled(lines: Sequence[str]) -> list[str]:
    """With a rule below the head and above the last line, the sum."""
    rule = "-" * max(map(len, lines))
    return [lines[0], rule, *lines[1:-1], rule, lines[-1]]


def short(number: float) -> str:
    """A count in a few characters: 812, 38.4k, 4.20M."""
    if number >= 1e6:
        return f"{number / 1e6:.2f}M"
    if number >= 1e4:
        return f"{number / 1e3:.1f}k"
    return f"{number:.0f}"


def at_least(known: float, lacking: int, digits: int = 2) -> str:
    """A sum, with "+" where something is missing in it."""
    return f"{known:.{digits}f}" + ("+" if lacking else "")
