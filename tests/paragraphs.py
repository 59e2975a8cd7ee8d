"""Draw paragraphs at random, to be read aloud: `python -m tests.paragraphs --seed 75`.

Rhythm can't be counted: somebody who didn't write the text has to read it. This draws from all
notebooks and pages, with the same chance for each paragraph or list item of 25 words or more.
Headings, tables and code are left out.
"""

import argparse
import random
import re
from collections.abc import Iterator
from pathlib import Path

import nbformat

from pa_tutorial.printing import print_anything

ROOT = Path(__file__).parent.parent
FENCED = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
TAG = re.compile(r"</?(?:details|summary|a|b|p)\b[^>]*>")
FEWEST_WORDS = 25


def texts() -> Iterator[tuple[str, str]]:
    """Where each piece of Markdown stands, and the piece."""
    for path in sorted(ROOT.glob("notebooks/*.ipynb")):
        for cell in nbformat.read(path, as_version=4).cells:
            if cell.cell_type == "markdown":
                yield cell.id, cell.source
    pages = [*ROOT.glob("*.md"), *ROOT.glob("notebooks/*.md"), *ROOT.glob("tests/*.md")]
    pages += [*ROOT.glob("pa_tutorial/**/*.md"), *ROOT.glob("simt/**/*.md")]
    for path in sorted(pages):
        yield path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")


def paragraphs() -> Iterator[tuple[str, str]]:
    for place, text in texts():
        for block in re.split(r"\n\s*\n|\n(?=- |\d+\. )", TAG.sub("", FENCED.sub("", text))):
            prose = not block.lstrip().startswith(("#", "|", "!", "$$"))
            if prose and len(block.split()) >= FEWEST_WORDS:
                yield place, " ".join(block.split())


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.paragraphs", description=__doc__)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--count", type=int, default=20)
    told = parser.parse_args()
    drawn = random.Random(told.seed).sample([*paragraphs()], told.count)
    for number, (place, text) in enumerate(drawn, start=1):
        print(f"{number}. [{place}] {text}\n")


if __name__ == "__main__":
    print_anything()
    main()
