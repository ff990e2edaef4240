"""docs/reruns.md holds the tables as they are now."""

from invalidation.render import BEGIN, DOCUMENT, END, document


def test_the_tables_of_the_document_are_those_that_are_tested() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    assert text.count(BEGIN) == text.count(END) == 1
    assert text == document(text), "run `make docs`"
