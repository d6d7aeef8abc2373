"""The page beside the keyboard: a job hangs, is slow, is wrong or is dead; what to ask first, and who answers."""

from __future__ import annotations

from typing import NamedTuple

from matplotlib.axes import Axes

from course_lib.viz.ink import marks, sheet, style
from course_lib.viz.ink.entries import broken
from course_lib.viz.ink.picture import Picture

_ROOT, _BUS, _TOP = 1.2, 1.86, 2.08  # inches from the page's top: the first question, its branches, the columns
_HEAD, _LINE, _PAD, _BETWEEN, _GAP, _COMMAND = 0.46, 0.235, 0.12, 0.24, 0.14, 0.27
_STRIP, _WORD = 0.3, 1.3  # at the foot: from the columns to the commands, and room for what a command is for


class _Question(NamedTuple):
    """What to ask, and what answers it, in one or several paragraphs."""

    asked: str
    answers: tuple[str, ...]


_COLUMNS = {
    "It hangs": (
        _Question("Has it started at all?", ("squeue; a torchrun in next_rendezvous waits for another node",)),
        _Question(
            "Is every rank there?",
            ("ps: gone? stopped (T): kill -CONT, or nobody answers; busy (R), its TIME grows: read its stack",),
        ),
        _Question(
            "Where does each rank wait?",
            ("its stack. One in no collective: read there. In its DataLoader: read the stacks of its children",),
        ),
        _Question(
            "All in collectives: which call differs first?", ("the flight recorder; an odd stack may be a call late",)
        ),
        _Question("Why there?", ("a short run with DETAIL; trust its lines, not the ranks that it names",)),
    ),
    "It is slow": (
        _Question("Is the wire what it should be?", ("course_lib preflight: busbw against the preset",)),
        _Question("What is exposed?", ("a trace of torch.profiler",)),
        _Question("Who is last?", ("the own work of each rank; step times are all alike",)),
        _Question("Does it wait for data?", ("the loader's spans in that trace",)),
    ),
    "It is wrong": (
        _Question("Is a rank's gradient unlike one device's?", ("the ladder (verify)",)),
        _Question("Did a number become nan?", ("the first step with it, and on which rank",)),
        _Question("Did data repeat, or get lost?", ("the rows that each rank has read",)),
        _Question("Are all replicas one?", ("a checksum of each rank's weights",)),
    ),
    "It is dead": (
        _Question(
            "Who ended first, and how?",
            (
                "torchrun's table: Root Cause",
                "−9 killed: memory?",
                "−6 abort: calls that do not fit?",
                "−15 ended by torchrun",
                "1 an error, or it lost a dead one",
            ),
        ),
        _Question("Does it go on from its last checkpoint?", ("--max-restarts; scontrol requeue",)),
        _Question("How often shall it write?", ("Young's interval",)),
    ),
}
_COMMANDS = {  # in capitals: what you put in
    "before": "faulthandler.register(SIGUSR2); start_debug_server(PORT)",
    "does it run": "squeue --me;  scontrol show job JOB;  py-spy dump --pid TORCHRUN",
    "its ranks": "pgrep -af 'torchrun|distributed.run';  pgrep -P TORCHRUN",
    "its children": "pgrep -P PID  (a loader's workers have its RANK, too)",
    "which rank": "ps -o ppid,stat,time -p PID;  grep -az ^RANK= /proc/PID/environ",
    "stacks": "py-spy dump --locals --pid PID  (--nonblocking if it is stopped)",
    "by the signal": "kill -USR2 PID  (a rank's: torchrun would die of it)",
    "by the server": "curl -sm 70 HOST:PORT/stacks | grep -E 'Rank|File'",
    "every node": "srun --jobid=JOB --overlap --ntasks-per-node=1 --label …",
    "calls": "python -m course_lib.gauges.flight FOLDER  (HOST:PORT: no lines)",
    "why there": "TORCH_DISTRIBUTED_DEBUG=DETAIL torchrun …  (DDP: see lesson 12)",
    "logs": "LOG_DIR/*/attempt_0/RANK/stderr.log;  grep -A 7 'Root Cause'",
}
_FIRST = 1.9  # the first column has most to say, so it is as many times as wide as another
_ROOM = style.PAGE_WIDTH - 2 * style.MARGIN - (len(_COLUMNS) - 1) * _GAP
_WIDTHS = [share * _ROOM / (len(_COLUMNS) - 1 + _FIRST) for share in (_FIRST, *[1.0] * (len(_COLUMNS) - 1))]


@sheet.course_style()
def plot_first_questions() -> Picture:
    """Four columns of questions, each with the tool that answers it, and what to type; it prints on a sheet of A4."""
    title = "What to ask first"
    subtitle = "from the top down, until one answer surprises you"
    columns = [*zip(_COLUMNS, _COLUMNS.values(), _WIDTHS, strict=True)]
    tallest = max(sum(_BETWEEN + _height(one, wide) for one in asked) for _, asked, wide in columns)
    foot = _STRIP + _TOP + _HEAD + tallest
    figure, page = sheet.new_page(foot + (len(_COMMANDS) + 1) * _COMMAND + 0.4, title, subtitle)
    centre = style.PAGE_WIDTH / 2
    marks.box(page, centre - 1.2, _ROOT, 2.4, 0.42, fill=style.PANEL, edge=style.FAINT)
    marks.label(page, centre, _ROOT + 0.21, "What do you see?", bold=True)
    left = style.MARGIN
    for head, questions, wide in columns:
        middle = left + wide / 2
        marks.arrow_along(page, [(centre, _ROOT + 0.42), (centre, _BUS), (middle, _BUS), (middle, _TOP)], line=1.6)
        marks.box(page, left, _TOP, wide, _HEAD, fill=style.INK)
        marks.label(page, middle, _TOP + _HEAD / 2, head, colour=style.PAPER, bold=True)
        _draw_column(page, left, wide, questions)
        left += wide + _GAP
    _draw_commands(page, foot)
    return Picture(figure, title=title, description=_in_words(subtitle))


def _draw_column(page: Axes, left: float, wide: float, questions: tuple[_Question, ...]) -> None:
    """A card for each question, the question in bold, and below it what answers it."""
    y = _TOP + _HEAD
    for question in questions:
        marks.arrow(page, (left + wide / 2, y), (left + wide / 2, y + _BETWEEN), line=1.6)
        y += _BETWEEN
        marks.box(page, left, y, wide, _height(question, wide), fill=style.PANEL, edge=style.FAINT)
        lines, bold = _lines(question, wide)
        for number, text in enumerate(lines):
            down = y + _PAD + (number + 0.5) * _LINE
            marks.label(page, left + _PAD, down, text, size=style.SMALL_SIZE, bold=number < bold, align="left")
        y += _height(question, wide)


def _lines(question: _Question, wide: float) -> tuple[list[str], int]:
    """What stands on the card, line by line, and how many of them ask."""
    asked = _wrapped(question.asked, 600, wide)
    return asked + [line for answer in question.answers for line in _wrapped(answer, 400, wide)], len(asked)


def _wrapped(text: str, weight: int, wide: float) -> list[str]:
    words, room = [f"{word} " for word in text.split()], wide - 2 * _PAD + 0.06  # the last space needs none
    lines = broken(words, lambda word: sheet.text_width(f"{word}|", style.SMALL_SIZE, weight), room)
    return ["".join(line).rstrip() for line in lines]


def _height(question: _Question, wide: float) -> float:
    return len(_lines(question, wide)[0]) * _LINE + 2 * _PAD


def _draw_commands(page: Axes, top: float) -> None:
    """What to type, below the columns."""
    tall = (len(_COMMANDS) + 1) * _COMMAND
    marks.box(page, style.MARGIN, top, style.PAGE_WIDTH - 2 * style.MARGIN, tall, edge=style.FAINT)
    left = style.MARGIN + _PAD
    for number, (purpose, command) in enumerate(_COMMANDS.items(), start=1):
        y = top + number * _COMMAND
        marks.label(page, left, y, purpose, size=style.SMALL_SIZE, colour=style.SOFT, align="left")
        marks.label(page, left + _WORD, y, command, size=style.SMALL_SIZE, align="left", code=True)


def _in_words(subtitle: str) -> str:
    lines = [subtitle]
    for head, questions in _COLUMNS.items():
        lines.append(f"  {head}")
        lines += [f"    {question.asked} {'; '.join(question.answers)}" for question in questions]
    lines += [f"  {purpose}: {command}" for purpose, command in _COMMANDS.items()]
    return "\n".join(lines)
