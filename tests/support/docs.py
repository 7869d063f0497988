"""The project's pages of docs: their files, code blocks, links and named things."""

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
LONG_RUNNING = "# runs until it is stopped"

_FENCE = re.compile(r"^```(\w*)[ ]?(\S*)\n(.*?)^```$", re.M | re.S)
_SPAN = re.compile(r"(?<!`)`([^`\n]+(?:\n[^`\n]+)?)`(?!`)")
_LINK = re.compile(r"(?<!!)\[[^\]\n]+\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ (.+)$", re.M)


class Block(NamedTuple):
    """A fenced block: its language, the file that it stands for (if any), and its text."""

    language: str
    file: str
    text: str


class Page(NamedTuple):
    path: Path
    text: str

    @property
    def name(self) -> str:
        return str(self.path.relative_to(ROOT))

    @property
    def blocks(self) -> list[Block]:
        return [Block(*found) for found in _FENCE.findall(self.text)]

    @property
    def prose(self) -> str:
        """The text without its blocks."""
        return _FENCE.sub("", self.text)

    @property
    def spans(self) -> list[str]:
        """What stands between single backticks, on one line each."""
        return [" ".join(span.split()) for span in _SPAN.findall(self.prose)]

    @property
    def links(self) -> list[str]:
        return _LINK.findall(self.prose)

    @property
    def anchors(self) -> set[str]:
        """The anchors that a reader's browser makes of the headings."""
        kept = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in _HEADING.findall(self.prose))
        return {heading.replace(" ", "-") for heading in kept}

    def section(self, heading: str) -> "Page":
        """Return the page up to the named heading of the second level."""
        return Page(self.path, self.text.partition(f"\n## {heading}\n")[0])


def pages() -> list[Page]:
    """Return every page that a reader may open: docs/ and the pages at the root."""
    found = sorted([*DOCS.rglob("*.md"), *ROOT.glob("*.md")])
    return [Page(path, path.read_text(encoding="utf-8")) for path in found]


def commands(block: Block) -> list[str]:
    """Return the commands of a shell block, continued lines joined, comments left out."""
    joined = block.text.replace("\\\n", " ")
    return [line.strip() for line in joined.splitlines() if line.strip() and not line.startswith("#")]


def howto(name: str) -> Page:
    """Return a page of docs/howto."""
    return Page(DOCS, (DOCS / "howto" / name).read_text(encoding="utf-8"))
