"""What must hold of the documentation, checked in seconds.

    python -m docs.check

Links and named files exist, a page shows each image, the generated pages are those that the code
gives, and README and `docs/` keep to their lengths: words in all, words in a sentence. Each fault
is one line with file and line. `tests/e2e/test_examples.py` runs the examples.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

from cluster.reference.pages import PAGES, stale_pages
from docs.prose import Sentence, anchors, prose_of, sentences

ROOT = Path(__file__).resolve().parents[1]
README_WORDS = 900
DOCS_WORDS = 29_500
MEAN_WORDS = 18
MOST_WORDS = 40
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_FOLDERS = (
    "bench|cluster|decode_pool|docs|engine|helm|kv_transfer|models|prefill_pool|protos|"
    "tandem_client|tests"
)
_NAMED_FILE = re.compile(rf"`((?:{_FOLDERS})/[\w./-]*\w)`")
_REFERENCE = Path("docs", "reference")


@dataclass(frozen=True, slots=True)
class Page:
    """A Markdown file; `path` is relative to the repository."""

    path: Path
    text: str

    @property
    def is_decision(self) -> bool:
        """Whether it records a decision, which keeps the paths and names of its day."""
        return self.path.parts[:2] == ("docs", "decisions")

    @property
    def is_generated(self) -> bool:
        """Whether a make target writes it."""
        pages = {_REFERENCE / name for name in PAGES}
        return self.path in pages or self.path == Path("bench", "REPORT.md")

    @property
    def words(self) -> int:
        """As `wc -w` counts them, code and tables included."""
        return len(self.text.split())


def read_pages(root: Path = ROOT) -> list[Page]:
    """Every page that a reader is led to."""
    files = [*sorted(root.glob("*.md")), *sorted(root.glob("docs/**/*.md"))]
    files += sorted(root.glob("bench/*.md"))
    return [Page(file.relative_to(root), file.read_text(encoding="utf-8")) for file in files]


def broken_links(pages: Iterable[Page], root: Path = ROOT) -> Iterator[str]:
    """Relative links whose file or heading is not there."""
    known: dict[Path, set[str]] = {}
    for page in pages:
        for line, text in prose_of(page.text, tables=True):
            for target in _LINK.findall(text):
                if "://" in target or target.startswith("mailto:"):
                    continue
                name, _, anchor = target.partition("#")
                file = (root / page.path).parent / name if name else root / page.path
                if not file.exists():
                    yield f"{page.path}:{line}: no such file: {target}"
                elif anchor and file.suffix == ".md":
                    if file not in known:
                        known[file] = anchors(file.read_text(encoding="utf-8"))
                    if anchor not in known[file]:
                        yield f"{page.path}:{line}: no such heading: {target}"


def missing_files(pages: Iterable[Page], root: Path = ROOT) -> Iterator[str]:
    """Files of the repository that a page names and that are not there."""
    for page in pages:
        if page.is_decision or page.path.name == "CHANGELOG.md":
            continue
        for line, text in prose_of(page.text, tables=True):
            for name in _NAMED_FILE.findall(text):
                if not (root / name).exists():
                    yield f"{page.path}:{line}: no such file: {name}"


def unused_images(pages: Iterable[Page], root: Path = ROOT) -> Iterator[str]:
    """Images of `docs/images/` that no page shows or links."""
    links = {Path(target).name for page in pages for target in _LINK.findall(page.text)}
    for file in sorted(root.glob("docs/images/*")):
        if file.name not in links:
            yield f"{file.relative_to(root)}: no page shows it"


def too_many_words(pages: Iterable[Page]) -> Iterator[str]:
    """README and `docs/` beyond what they may have."""
    pages = list(pages)
    for page in pages:
        if page.path == Path("README.md") and page.words > README_WORDS:
            yield f"README.md:1: {page.words} words, {README_WORDS} at most"
    written = [page for page in pages if page.path.parts[0] == "docs"]
    words = sum(p.words for p in written if not (p.is_decision or p.is_generated))
    if words > DOCS_WORDS:
        yield f"docs:1: {words} words without decisions and generated pages, {DOCS_WORDS} at most"


def long_sentences(pages: Iterable[Page]) -> Iterator[str]:
    """Sentences over the limit, and a mean over the limit."""
    lengths = []
    for page, sentence in _written(pages):
        lengths.append(sentence.words)
        if sentence.words > MOST_WORDS:
            where = f"{page.path}:{sentence.line}"
            yield f"{where}: {sentence.words} words, {MOST_WORDS} at most: {sentence.text}"
    if lengths and mean(lengths) > MEAN_WORDS:
        yield f"docs:1: {mean(lengths):.1f} words in a sentence, {MEAN_WORDS} in the mean at most"


def lengths_of(pages: Iterable[Page]) -> str:
    """Words, sentences and their mean of each page, as a table."""
    rows = []
    for page in pages:
        found = [s.words for _, s in _written([page])]
        if found:
            row = f"{page.words:6} {len(found):5} {mean(found):5.1f} {max(found):4}  {page.path}"
            rows.append(row)
    return "\n".join([" words  sent.  mean most  page", *rows])


def _written(pages: Iterable[Page]) -> Iterator[tuple[Page, Sentence]]:
    """Every sentence that we write for a reader of README, bench or `docs/`."""
    for page in pages:
        ours = page.path.parts[0] in ("README.md", "docs", "bench")
        if ours and not (page.is_decision or page.is_generated):
            for sentence in sentences(page.text):
                yield page, sentence


def main(arguments: list[str]) -> int:
    """Print every fault; 1 where there is one. `--lengths` prints the table of lengths too."""
    pages = read_pages()
    if "--lengths" in arguments:
        print(lengths_of(pages))
    faults = [
        *broken_links(pages),
        *missing_files(pages),
        *unused_images(pages),
        *(f"{name}: stale; run `make reference`" for name in stale_pages(ROOT / _REFERENCE)),
        *too_many_words(pages),
        *long_sentences(pages),
    ]
    print("\n".join(faults) if faults else "the documentation keeps its rules")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
