"""Parts of Markdown documents that commands write: what stands between two marks."""

from __future__ import annotations


def has_marks(text: str, name: str) -> bool:
    """Say whether a text has ``<!-- name -->``, and ``<!-- end of name -->`` behind it."""
    opening, closing = _marks(name)
    _, _, rest = text.partition(opening)
    return closing in rest


def put_between(text: str, name: str, content: str) -> str:
    """Return the text with ``content`` on lines of its own between the marks of ``name``.

    Raises
    ------
    ValueError
        Where the text lacks one of the marks; nothing of it is lost.
    """
    opening, closing = _marks(name)
    if not has_marks(text, name):
        raise ValueError(f"the document lacks the marks {opening.strip()} … {closing}")
    before, _, rest = text.partition(opening)
    _, _, after = rest.partition(closing)
    return f"{before}{opening}{content}\n{closing}{after}"


def _marks(name: str) -> tuple[str, str]:
    return f"<!-- {name} -->\n", f"<!-- end of {name} -->"
