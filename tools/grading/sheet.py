"""Tables as Excel, LibreOffice, Moodle and Canvas save them: read in any of their forms, or refused whole.

Spreadsheets choose the encoding, the separator, the line ends and the case of a heading by the machine that they run
on, and leave out what is empty at the end of a line.
"""

from __future__ import annotations

import codecs
import csv
import io
import os
import re
from collections.abc import Callable
from pathlib import Path

from tools.grading.names import readable

SEPARATORS = ",;\t|"
FORMULA = "=+\\-@＝＋－＠"  # how a cell begins that a spreadsheet computes; the last four in East Asia
STARTS = r"(^|[,;\t|\r\n])(\s*'*)"  # of a cell, also where another separator is read than we write
NUMBER = re.compile(r"[-+]?\d+(?:[.,]\d+)?")


class SheetError(Exception):
    """Why a file is not read, without its name."""


def read_sheet(
    content: bytes, named: Callable[[list[str]], list[str]] = list
) -> tuple[list[str], list[dict[str, str]]]:
    """The headings, as `named` corrects them, and the rows of a table with a column of students; no cell is lost.

    Raises: SheetError if there is anything in it that is not understood.
    """
    text = text_of(content).removeprefix("\ufeff")
    declared = re.match(r"sep=(.)\r?\n", text)  # a line for Excel alone
    text = text[declared.end() :] if declared else text
    for separator in declared[1] if declared else SEPARATORS:
        (_, first), *lines = lines_of(text, separator) or [(0, [])]
        if "student" in map(str.lower, first):
            columns = headings(named(first))
            return [name for name in columns if name], [row(columns, *line) for line in lines]
    raise SheetError("no column student")


def text_of(content: bytes) -> str:
    """Text in the encoding that it was saved in: a mark says so, or its bytes do."""
    marked = {codecs.BOM_UTF8: "utf-8", codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}
    guesses = [encoding for mark, encoding in marked.items() if content.startswith(mark)]
    if not guesses and b"\0" in content:  # UTF-16 without its mark: every other byte of a heading is zero
        guesses = ["utf-16-le" if content[1:2] == b"\0" else "utf-16-be"]
    for encoding in guesses or ["utf-8", "cp1252"]:  # Excel's plain "CSV" in western Europe and America
        try:
            return content.decode(encoding)
        except UnicodeDecodeError:
            continue
    raise SheetError("its letters are in no encoding that is known here; save it as CSV UTF-8")


def lines_of(text: str, separator: str) -> list[tuple[int, list[str]]]:
    """The cells of each line that has any, and the line's number."""
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
    found = []
    try:
        for cells in reader:
            cells = [plain(cell.strip()) for cell in cells]
            if any(cells):
                found.append((reader.line_num, cells))
    except csv.Error as error:
        if found and "student" in map(str.lower, found[0][1]):
            raise SheetError(f"line {reader.line_num} is broken: {error}") from error
    return found


def headings(cells: list[str]) -> list[str]:
    """The names of the columns; that of the students is written in small letters."""
    names = [name.lower() if name.lower() == "student" else name for name in cells]
    twice = sorted({name for name in names if name and names.count(name) > 1})
    if twice:
        raise SheetError(f"the column {twice[0]} is there twice")
    return names


def row(columns: list[str], number: int, cells: list[str]) -> dict[str, str]:
    """One line by heading; what is empty at its end may be missing."""
    cells = cells + [""] * (len(columns) - len(cells))
    if any(cells[len(columns) :]) or any(cell for name, cell in zip(columns, cells, strict=False) if not name):
        raise SheetError(f"line {number} has a cell in a column without a heading")
    found = {name: cell for name, cell in zip(columns, cells, strict=False) if name}
    found["student"] = readable(found["student"])
    if not found["student"]:
        raise SheetError(f"line {number} has cells, but no student")
    return found


def sheet(columns: list[str], rows: list[dict[str, str]]) -> bytes:
    """The table as a file: commas, and UTF-8 with the mark without which Excel takes it for something else."""
    file = io.StringIO(newline="")
    table = csv.writer(file)
    table.writerows([[harmless(name) for name in columns]])
    table.writerows([[harmless(found.get(name, "")) for name in columns] for found in rows])
    return codecs.BOM_UTF8 + file.getvalue().encode("utf-8", "backslashreplace")


def harmless(cell: str) -> str:
    """A cell that spreadsheets show and do not compute; `plain` reads it back.

    >>> harmless("=1+1"), harmless("-2"), harmless("ann;@SUM(A1)"), plain(harmless("'=x"))
    ("'=1+1", '-2', "ann;'@SUM(A1)", "'=x")
    """
    return cell if NUMBER.fullmatch(cell) else re.sub(rf"{STARTS}(?=[{FORMULA}])", r"\1\2'", cell)


def plain(cell: str) -> str:
    """A cell without the marks that `harmless` has set."""
    return re.sub(rf"{STARTS}'(?=[{FORMULA}])", r"\1\2", cell)


def write_whole(path: Path, content: bytes) -> None:
    """Put a file in the place of another one: whoever looks, even after a power cut, finds the one or the other."""
    unfinished = path.with_name(f".{path.name}.unfinished")
    with unfinished.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    if path.exists():
        unfinished.chmod(path.stat().st_mode & 0o777)
    os.replace(unfinished, path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
