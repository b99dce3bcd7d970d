"""Checking SQLite's write-ahead log, the file beside a journal with pages not merged yet."""

from __future__ import annotations

import struct
from pathlib import Path

HEADER, FRAME = 32, 24
"""Bytes before the first page, and before each page (https://www.sqlite.org/walformat.html)."""

BIG_ENDIAN = 1
"""Bit of the magic number: checksums are over big-endian numbers."""


def damage_of_wal(path: Path) -> str | None:
    """Return what is wrong with the write-ahead log of a journal, as text; None if it looks whole.

    SQLite reads the log up to the first page with a wrong checksum, and ignores the rest as a
    transaction that was never committed. Each transaction is on disk before the next begins. So if
    two or more follow the wrong page, the log is damaged. If one or none does, it may as well be
    the trace of a power cut.

    Args:
        path: The journal, which another process may be writing.
    """
    beside = path.with_name(path.name + "-wal")
    while True:
        content = _content(beside)
        damage = _damage(content)
        # A log that another process is writing may look damaged: read it again until it rests.
        if damage is None or _content(beside) == content:
            return damage


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""


def _damage(wal: bytes) -> str | None:
    if len(wal) <= HEADER:
        return None
    magic, _, page_size = struct.unpack_from(">3I", wal)
    order = ">" if magic & BIG_ENDIAN else "<"
    sums = _summed(order, wal[: HEADER - 8])
    if struct.unpack_from(">2I", wal, HEADER - 8) != sums:
        return "its write-ahead log has a head with another checksum"
    salts = wal[16:24]
    whole, lost = True, 0
    for place in range(HEADER, len(wal) - FRAME - page_size + 1, FRAME + page_size):
        ends_transaction = wal[place + 4 : place + 8] != bytes(4)
        # Pages of an earlier log, which this one overwrites, have other salts.
        current = wal[place + 8 : place + 16] == salts
        if whole:
            page = wal[place + FRAME : place + FRAME + page_size]
            sums = _summed(order, wal[place : place + 8] + page, *sums)
            whole = current and struct.unpack_from(">2I", wal, place + 16) == sums
        if not whole and current and ends_transaction:
            lost += 1
    if lost < 2:
        return None
    return f"its write-ahead log cannot be read to its end, {lost} transactions are lost"


def _summed(order: str, data: bytes, one: int = 0, two: int = 0) -> tuple[int, int]:
    """Return SQLite's checksum of pairs of 32-bit numbers, going on from an earlier one."""
    for first, second in struct.iter_unpack(f"{order}2I", data):
        one = (one + first + two) & 0xFFFFFFFF
        two = (two + second + one) & 0xFFFFFFFF
    return one, two
