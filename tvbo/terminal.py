"""Text from files, journals and workers, made safe to print on a terminal.

A header of a CSV file, the reason in a journal or the message of a worker's exception may contain
escape sequences, which a terminal would interpret. All text that the commands print is escaped.
"""


def visible(text: str) -> str:
    r"""Return ``text`` with every unprintable character escaped as in ``repr``, such as ``\x1b``.

    These are control characters (newlines and tabs too), marks that change the direction of
    writing, other invisible format characters, separators other than the space, and lone
    surrogates (:meth:`str.isprintable`).
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
