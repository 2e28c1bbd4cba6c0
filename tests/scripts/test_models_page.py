"""docs/models.md, docs/accuracy.md and docs/names.md show the figures of results/."""

import models_page


def test_the_tables_of_the_pages_are_those_of_their_rows() -> None:
    pages = [page.read_text(encoding="utf-8") for page in models_page.PAGES]
    assert [models_page.with_tables(page) for page in pages] == pages


def test_each_table_has_its_marks_on_a_page_once() -> None:
    marks = [mark for page in models_page.PAGES for mark in models_page.TABLE.findall(page.read_text(encoding="utf-8"))]
    assert sorted(marks) == sorted(models_page.tables())
