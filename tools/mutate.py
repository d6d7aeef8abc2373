"""Random mistakes in the library, one at a time, in a copy of the tree: which of them does no test see?

For each mistake the tests that reach its file run, the nearest first, until one fails.
What survives is printed; a person judges whether it can be seen at all: `nice python -m tools.mutate --seed 1`.
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tools.grading.isolation import WARDEN
from tools.imports import imports_of, reached
from tools.paths import CACHE, DEVELOPER, LEARNER, ROOT

PACKAGES = ("comm", "parallel", "training", "ranks", "verify", "checks")
TESTS = ("tests/unit", "tests/ranks", "tests/grading")
BOTH_WAYS = (
    *(("<", "<="), (">", ">="), ("==", "!="), ("+", "-"), ("<<", ">>")),
    *(("in", "not in"), ("is", "is not"), ("and", "or")),
)
OTHER = {**dict(BOTH_WAYS), **{b: a for a, b in BOTH_WAYS}, "*": "+", "//": "*", "%": "//", "**": "*"}
OPERATOR = re.compile(r"\*\*|<<|>>|<=|>=|==|!=|<|>|\bnot in\b|\bin\b|\bis not\b|\bis\b|\band\b|\bor\b|//|[+\-*%]")
NEAREST = 6  # so many test files are collected first
MESSAGES = ("four_parts", "refuse", "isinstance")  # isinstance: its arguments cannot be swapped unseen
Edit = tuple[int, int, str]  # from, to, the text in between
Place = Callable[[ast.AST], tuple[int, int]]  # where a node stands


@dataclass(frozen=True, kw_only=True)
class Mutation:
    """One mistake: bytes of a file from `start` to `end`, and what stands there instead."""

    file: str
    line: int
    start: int
    end: int
    old: str
    new: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {' '.join(self.old.split())} -> {' '.join(self.new.split())}"


def main() -> int:
    """Try mistakes and say what came of each; the exit status is 0 whatever survives."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--number", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit", type=int, default=120, help="seconds of tests for one mistake")
    arguments = parser.parse_args()
    chosen = sample(random.Random(arguments.seed), arguments.number)
    with tempfile.TemporaryDirectory(prefix="mutate-") as folder:
        copy = copied(Path(folder))
        survived = []
        for number, one in enumerate(chosen, 1):
            verdict = tried(copy, one, arguments.limit)
            survived += [one] * (not verdict.startswith("caught"))
            print(f"[{number}/{arguments.number}] {verdict}: {one}", flush=True)
    print(f"{arguments.number - len(survived)} of {arguments.number} caught; survived:")
    print("\n".join(map(str, survived)))
    return 0


def sample(random: random.Random, number: int) -> list[Mutation]:
    """As many mistakes in each package."""
    found = []
    for name in PACKAGES:
        files = sorted((ROOT / "course_lib" / name).rglob("*.py"))
        every = [one for path in files for one in mutations(str(path.relative_to(ROOT)), path.read_bytes())]
        found.append(random.sample(every, -(-number // len(PACKAGES))))
    return [one for row in zip(*found, strict=True) for one in row][:number]


def mutations(file: str, source: bytes) -> Iterator[Mutation]:
    """Every mistake that this script knows for a file."""
    starts = [0, *(found.end() for found in re.finditer(b"\n", source))]
    tree = ast.parse(source)
    hidden = {id(part) for node in ast.walk(tree) for part in unseen(node)}

    def place(node: ast.AST) -> tuple[int, int]:
        return starts[node.lineno - 1] + node.col_offset, starts[node.end_lineno - 1] + node.end_col_offset

    for node in ast.walk(tree):
        for start, end, new in () if id(node) in hidden else edits(node, place, source):
            yield Mutation(file=file, line=node.lineno, start=start, end=end, old=source[start:end].decode(), new=new)


def unseen(node: ast.AST) -> Iterator[ast.AST]:
    """Annotations, what is only written for people, zip's strict=: right programs behave the same without."""
    if isinstance(node, ast.keyword) and node.arg == "strict":
        yield node.value
    parts = [getattr(node, "annotation", None), getattr(node, "returns", None), *getattr(node, "decorator_list", ())]
    yield from (inner for part in parts if part is not None for inner in ast.walk(part))
    if isinstance(node, ast.JoinedStr | ast.Raise) or getattr(getattr(node, "func", None), "id", "") in MESSAGES:
        yield from ast.walk(node)
    if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
        yield node


def edits(node: ast.AST, place: Place, source: bytes) -> Iterator[Edit]:
    """The mistakes that can be made at one node."""
    match node:
        case ast.Compare():
            yield from between([node.left, *node.comparators], place, source)
        case ast.BoolOp():
            yield from between(node.values, place, source)
        case ast.BinOp():
            yield from between([node.left, node.right], place, source)
        case ast.Constant(value=bool(value)):
            yield *place(node), str(not value)
        case ast.Constant(value=int(value)):
            yield *place(node), str(value + 1)
        case ast.If() | ast.While() | ast.IfExp():
            start, end = place(node.test)
            yield start, end, f"(not ({source[start:end].decode()}))"
        case ast.Expr(value=ast.Call()) | ast.AugAssign():
            yield *place(node), "pass"
        case ast.Call(args=[first, second, *_]) if not any(isinstance(x, ast.Starred) for x in (first, second)):
            (start, middle), (later, end) = place(first), place(second)
            yield start, end, (source[later:end] + source[middle:later] + source[start:middle]).decode()


def between(operands: list[ast.expr], place: Place, source: bytes) -> Iterator[Edit]:
    """Another operator between two operands."""
    for left, right in zip(operands, operands[1:], strict=False):
        start, end = place(left)[1], place(right)[0]
        text = source[start:end].decode()
        new = OPERATOR.sub(lambda found: OTHER[found[0]], text, count=1)
        if new != text:
            yield start, end, new


def copied(folder: Path) -> Path:
    """A copy of what git knows here, as it stands."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).exists():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    for path in (LEARNER, DEVELOPER, CACHE):
        (folder / path.name).symlink_to(path)
    return folder


def tried(copy: Path, one: Mutation, limit_s: int) -> str:
    """Make the mistake, run tests until one fails, take it back."""
    path = copy / one.file
    before, (words, tests) = path.read_bytes(), ordered(copy, one.file)
    ends = time.monotonic() + limit_s
    path.write_bytes(before[: one.start] + one.new.encode() + before[one.end :])
    try:
        for some in filter(None, (tests[:NEAREST], tests[NEAREST:])):
            verdict = verdict_of(copy, [*words, *some], ends - time.monotonic())
            if verdict != "survived":
                return verdict
        return "survived"
    finally:
        path.write_bytes(before)


def verdict_of(copy: Path, words: list[str], limit_s: float) -> str:
    """Caught and by which test, survived, or out of time."""
    pytest = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--timeout=300", *words]
    command = [sys.executable, str(WARDEN), *pytest]  # a mistake may let ranks outlive their notebook
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    environment = {**os.environ, "PYTHONPATH": str(copy)}
    with subprocess.Popen(command, cwd=copy, env=environment, start_new_session=True, **pipes) as process:
        try:
            output, _ = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            return "not caught in time"
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)
    by = re.search(r"^(?:FAILED|ERROR) (\S+)", output, re.MULTILINE)
    return "survived" if process.returncode in (0, 5) else f"caught by {by[1] if by else 'the end of pytest'}"


def ordered(copy: Path, file: str) -> tuple[list[str], list[str]]:
    """What pytest is told about a file, and the tests that reach it: the nearest first."""
    files = [str(path.relative_to(copy)) for path in sorted((copy / "tests").rglob("test_*.py"))]
    tests = [test for test in files if test.startswith(TESTS) and file in reached(copy, test)]
    module = re.search(r"checks/module_(\d\d)/", file)  # the exercises of one module are judged by their own tests
    words = [f"--module={module[1]},shared"] if module else []
    return words, sorted(tests, key=lambda test: nearness(copy, test, file))


def nearness(copy: Path, test: str, file: str) -> tuple[int, int, int]:
    """Whoever is named as the file, or as its package, comes first, then who imports it, then tests without ranks."""
    package, name = Path(file).parts[1], Path(file).stem
    about = "exercises" if package == "checks" else package
    named = 0 if name in test else 1 if about in test.rpartition("/")[2] else 2
    kind = next(place for place, folder in enumerate(TESTS) if test.startswith(folder))
    return named, distance(copy, test, file), kind


def distance(copy: Path, test: str, file: str) -> int:
    """How many imports lie between a test and a file."""
    seen, waiting = {test}, deque([(test, 0)])
    while waiting:
        name, steps = waiting.popleft()
        if name == file:
            return steps
        new = set(imports_of(copy, name)) - seen
        seen |= new
        waiting += [(other, steps + 1) for other in new]
    return len(seen)


if __name__ == "__main__":
    sys.exit(main())
