"""Tables for a terminal."""

from collections.abc import Sequence


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as their widest entry; numbers to the right."""
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]
    return "\n".join(_line(row, widths) for row in (head, *rows))


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    cells = [
        text.rjust(width) if text.lstrip("+-").isdigit() else text.ljust(width)
        for text, width in zip(row, widths, strict=True)
    ]
    return "  ".join(cells).rstrip()
