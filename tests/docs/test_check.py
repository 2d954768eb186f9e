"""What `make docs-check` finds."""

from __future__ import annotations

from pathlib import Path

from docs.check import (
    DOCS_WORDS,
    README_WORDS,
    Page,
    broken_links,
    long_sentences,
    missing_files,
    read_pages,
    too_many_words,
    unused_images,
)


def page(name: str, text: str) -> Page:
    return Page(Path(name), text)


def test_links_to_files_and_headings_must_resolve(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "there.md").write_text("# A heading\n")
    good = "[a](there.md) [b](there.md#a-heading) [c](#own) [d](https://example.com/x)\n\n# Own\n"
    bad = "[a](gone.md)\n[b](there.md#gone)\n"
    for name, text in (("good.md", good), ("bad.md", bad)):
        (tmp_path / "docs" / name).write_text(text)
    pages = read_pages(tmp_path)
    assert list(broken_links(pages, tmp_path)) == [
        "docs/bad.md:1: no such file: gone.md",
        "docs/bad.md:2: no such heading: there.md#gone",
    ]


def test_files_that_are_named_must_be_there(tmp_path: Path) -> None:
    (tmp_path / "helm").mkdir()
    told = page("README.md", "`helm/` and `helm/gone.yaml` and `tandem serve`.\n")
    old = page("docs/decisions/0001-old.md", "`helm/gone.yaml`\n")
    assert list(missing_files([told, old], tmp_path)) == [
        "README.md:1: no such file: helm/gone.yaml"
    ]


def test_an_image_that_no_page_shows_is_reported(tmp_path: Path) -> None:
    images = tmp_path / "docs" / "images"
    images.mkdir(parents=True)
    for name in ("shown.png", "linked.png", "left.png"):
        (images / name).touch()
    shows = page("docs/a.md", "![a](images/shown.png) and [b](images/linked.png)\n")
    assert list(unused_images([shows], tmp_path)) == ["docs/images/left.png: no page shows it"]


def test_words_are_counted_without_decisions_and_generated_pages() -> None:
    long = "word " * DOCS_WORDS
    free = [page("docs/decisions/1.md", long), page("docs/reference/cli.md", long)]
    assert not list(too_many_words([*free, page("docs/a.md", long)]))
    assert len(list(too_many_words([*free, page("docs/a.md", long + "more")]))) == 1
    assert len(list(too_many_words([page("README.md", "word " * (README_WORDS + 1))]))) == 1


def test_a_long_sentence_is_reported_with_its_line() -> None:
    text = "Short.\n\n" + "word " * 41 + "end.\n" + "Short. " * 4
    (fault,) = long_sentences([page("docs/a.md", text)])
    assert fault.startswith("docs/a.md:3: 42 words, 40 at most: word ")


def test_the_mean_is_over_all_sentences() -> None:
    nineteen = "Word " * 18 + "end.\n\n"
    assert len(list(long_sentences([page("docs/a.md", nineteen)]))) == 1
    assert not list(long_sentences([page("docs/a.md", nineteen + "It is short.")]))
