"""What stands between two marks of a document is replaced, and nothing else is lost."""

import pytest

from theory.terminal.documents import has_marks, put_between

PAGE = "before\n<!-- table -->\nold\n<!-- end of table -->\nafter\n"
EMPTY = "before\n<!-- table -->\n<!-- end of table -->\nafter\n"


@pytest.mark.parametrize("page", [PAGE, EMPTY])
def test_what_stands_between_the_marks_is_replaced(page):
    made = put_between(page, "table", "| new |")
    assert made == "before\n<!-- table -->\n| new |\n<!-- end of table -->\nafter\n"
    assert put_between(made, "table", "| new |") == made


@pytest.mark.parametrize(
    "page", ["nothing", "<!-- table -->\nold", "<!-- end of table -->\n<!-- table -->\n"]
)
def test_a_page_without_both_marks_is_refused(page):
    assert not has_marks(page, "table")
    with pytest.raises(ValueError, match=r"lacks the marks <!-- table --> … <!-- end of table -->"):
        put_between(page, "table", "new")


def test_names_that_begin_alike_are_told_apart():
    page = EMPTY + EMPTY.replace("table", "table in full")
    made = put_between(page, "table in full", "new")
    assert made == EMPTY + EMPTY.replace("table", "table in full").replace(
        "in full -->\n<!--", "in full -->\nnew\n<!--"
    )
