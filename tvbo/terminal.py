"""What reaches the terminal: text of files, journals and workers with its control characters shown.

A header of a CSV file, the reason in a journal or the message of a worker's exception may hold
escape sequences, which a terminal obeys. Whatever the commands print passes through here.
"""

from __future__ import annotations

from rich.console import Console
from rich.text import Text


def visible(text: str) -> str:
    r"""Return ``text`` with every unprintable character as ``repr`` writes it, such as ``\x1b``.

    These are control characters (newlines and tabs too), marks that change the direction of
    writing, other invisible format characters, separators other than the space, and lone
    surrogates (:meth:`str.isprintable`).
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


class SafeConsole(Console):
    """A Rich console that prints strings as they are: no markup, no emoji codes, :func:`visible`.

    Rich turns every string into text by :meth:`render_str`, also cells and titles of tables. Words
    that want a style are given as :class:`rich.text.Text`, which is trusted.
    """

    def __init__(self, stderr: bool = False):
        super().__init__(stderr=stderr, markup=False, emoji=False)

    def render_str(self, text: str, **options) -> Text:
        """Return a string as text, unprintable characters shown."""
        return super().render_str(visible(text), **options)
