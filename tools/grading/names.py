"""Names of students and files as text: the same for a folder, a roster and a table, whatever bytes they are made of."""

from __future__ import annotations

import os
import unicodedata

UNREADABLE = ("Cc", "Cs", "Zl", "Zp")  # what ends a line, moves the cursor, or is half a character


def readable(name: str) -> str:
    r"""A name in one line of text that any file can hold.

    Bytes that are no UTF-8 (Windows' archives have them) and control characters are spelled out, and letters are
    composed as Windows and Linux compose them, because macOS takes them apart.

    >>> readable("J\udcfcrgen\n "), readable("Ju\u0308rgen") == "J\u00fcrgen"
    ('J\\xfcrgen\\x0a', True)
    """
    text = os.fsencode(name).decode("utf-8", "backslashreplace") if has_bytes(name) else name
    composed = unicodedata.normalize("NFC", text)
    return "".join(spelled(letter) for letter in composed).strip()


def has_bytes(name: str) -> bool:
    """Whether a name from the file system holds bytes that are no text."""
    return any("\udc80" <= letter <= "\udcff" for letter in name)


def spelled(letter: str) -> str:
    if unicodedata.category(letter) not in UNREADABLE:
        return letter
    return f"\\x{ord(letter):02x}" if ord(letter) < 256 else f"\\u{ord(letter):04x}"


def file_name(name: str) -> str:
    """A folder's name for a student: no path in it, and no longer than file systems allow."""
    text = name.replace("/", "_").strip(".") or "_"
    return text.encode()[:200].decode("utf-8", "ignore")
