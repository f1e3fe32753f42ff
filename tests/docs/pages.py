"""The code cells of a page of the site, as they are printed there, for tests that run some of them."""

import re
from pathlib import Path
from typing import NamedTuple

DOCS = Path(__file__).parents[2] / "docs"
_CELL = re.compile(r"^```\{code-cell\}[^\n]*\n(.*?)^```$", flags=re.DOTALL | re.MULTILINE)


class Cell(NamedTuple):
    """A cell: its magic without the text ("%%bash", "%%writefile mine.py", "" for Python), and the text."""

    magic: str
    text: str


def cells(page):
    """Return the cells of ``docs/page``, a MyST notebook, in order; options such as ``:tags:`` are left out."""
    found = []
    for body in _CELL.findall((DOCS / page).read_text(encoding="utf-8")):
        lines = body.splitlines(keepends=True)
        while lines and re.match(r":[\w-]+:", lines[0]):
            del lines[0]
        magic = lines.pop(0).strip() if lines and lines[0].startswith("%%") else ""
        found.append(Cell(magic, "".join(lines)))
    assert found, f"{page} has no code cell"
    return found


def cell_with(page, *words):
    """Return the text of the one Python cell of a page in which all the words stand."""
    texts = [cell.text for cell in cells(page) if not cell.magic and all(word in cell.text for word in words)]
    assert len(texts) == 1, f"{len(texts)} cells of {page} have {words}"
    return texts[0]
