"""Who starts whom on a cluster, from sbatch down to a rank, and which variable comes from where."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

from matplotlib.axes import Axes

from course_lib.errors import four_parts
from course_lib.viz.ink import marks, sheet, style
from course_lib.viz.ink.picture import Picture

_MOST_NODES, _MOST_GPUS, _ALL_SHOWN = 4, 8, 4  # of a node with more GPUs some ranks stand for all
_WIDE, _TALL = 2.1, 0.42  # inches: a command
_STEM, _BESIDE = style.MARGIN + 0.5, 0.2  # where the arrow between commands runs, from it to what is handed down
_SBATCH, _SRUN, _BUS, _NODES, _CARD = 1.2, 2.34, 3.66, 3.9, 5.9  # from the page's top
_PANEL, _CARD_TALL, _LINE = 1.6, 1.5, 0.3  # the heights of a node, of the rank's card and of its lines
_GAP, _PILL = 0.16, 0.34


class _Allocation(NamedTuple):
    """How many there are, and the rank that is followed."""

    nodes: int
    gpus: int
    rank: int

    @property
    def node(self) -> int:
        return self.rank // self.gpus

    @property
    def local(self) -> int:
        return self.rank % self.gpus


@sheet.course_style()
def plot_who_starts(nodes: int = 4, gpus_per_node: int = 4, rank: int = 9) -> Picture:
    """sbatch, srun, a torchrun on each node, a rank for each GPU, and what each hands down; one rank's own values.

    torchrun numbers the nodes itself, by their names, here as Slurm does.
    Raises: ValueError for more than 4 nodes or 8 GPUs on each, or a rank that is not there.
    """
    if not (1 <= nodes <= _MOST_NODES and 1 <= gpus_per_node <= _MOST_GPUS and 0 <= rank < nodes * gpus_per_node):
        values = f"nodes={nodes}, gpus_per_node={gpus_per_node}, rank={rank}"
        rule = f"this picture holds {_MOST_NODES} nodes of {_MOST_GPUS} GPUs, and follows one of their ranks"
        raise ValueError(four_parts("plot_who_starts", values, rule, "draw fewer: the pattern is the same"))
    job = _Allocation(nodes, gpus_per_node, rank)
    subtitle = "one sbatch, one srun, one torchrun on each node, one rank for each GPU"
    figure, page = sheet.new_page(_CARD + _CARD_TALL + 0.3, "Who starts whom", subtitle)
    handed = _handed(job)
    _draw_commands(page, handed)
    middles = [_draw_node(page, job, node) for node in range(nodes)]
    marks.arrow_along(page, [(_STEM, _SRUN + _TALL), (_STEM, _BUS), (middles[0], _BUS), (middles[0], _NODES)])
    for before, after in pairwise(middles):
        marks.arrow_along(page, [(before, _BUS), (after, _BUS), (after, _NODES)])
    _draw_card(page, job)
    said = [f"  {who} {what}" for who, what in handed]
    said += [f"  rank {rank} finds {' '.join(_environment(job))}; {_reason(job)}"]
    return Picture(figure, title="Who starts whom", description="\n".join([subtitle, *said]))


def _handed(job: _Allocation) -> list[tuple[str, str]]:
    """Who says what to the next command."""
    last = job.nodes - 1
    nodes, each = (f"node[0-{last}]", f"0 … {last}") if last else ("node0", "0")
    return [
        ("Slurm sets", f"SLURM_JOB_ID=4711 SLURM_JOB_NODELIST={nodes} SLURM_NNODES={job.nodes}"),
        ("srun adds", f"SLURM_NODEID={each}"),
        ("you write", f"--nnodes={job.nodes} --nproc-per-node={job.gpus} --rdzv-endpoint=node0:14711"),
    ]


def _environment(job: _Allocation) -> list[str]:
    """What torchrun sets for the rank that is followed, in two lines."""
    return [
        f"RANK={job.rank} LOCAL_RANK={job.local} GROUP_RANK={job.node} WORLD_SIZE={job.nodes * job.gpus}",
        f"LOCAL_WORLD_SIZE={job.gpus} MASTER_ADDR=node0 MASTER_PORT=41873",
    ]


def _reason(job: _Allocation) -> str:
    return f"RANK = {job.node} × {job.gpus} + {job.local}: the node's number × GPUs of a node + LOCAL_RANK, its GPU"


def _draw_commands(page: Axes, handed: list[tuple[str, str]]) -> None:
    """The two that Slurm has, below each other, with what they hand down beside the arrows."""
    commands = {
        "sbatch job.sh": (_SBATCH, "you type it once; the file then runs on the first node"),
        "srun torchrun …": (_SRUN, "a line of that file; it starts one torchrun on each node"),
    }
    for text, (top, words) in commands.items():
        marks.box(page, style.MARGIN, top, _WIDE, _TALL, fill=style.PANEL, edge=style.FAINT)
        marks.label(page, style.MARGIN + 0.14, top + _TALL / 2, text, align="left", code=True)
        marks.label(page, style.MARGIN + _WIDE + 0.2, top + _TALL / 2, words, colour=style.SOFT, align="left")
    marks.arrow(page, (_STEM, _SBATCH + _TALL), (_STEM, _SRUN))
    heights = ((_SBATCH + _TALL + _SRUN) / 2, _SRUN + _TALL + 0.24, _SRUN + _TALL + 0.58)
    for y, (who, what) in zip(heights, handed, strict=True):
        look: dict[str, Any] = {"size": style.SMALL_SIZE, "align": "left"}
        marks.label(page, _STEM + _BESIDE, y, who, colour=style.SOFT, **look)
        marks.label(page, _STEM + _BESIDE + 1.08, y, what, code=True, **look)


def _draw_node(page: Axes, job: _Allocation, node: int) -> float:
    """A torchrun above its ranks; returns its middle."""
    wide = (style.PAGE_WIDTH - 2 * style.MARGIN + _GAP) / job.nodes - _GAP
    left = style.MARGIN + node * (wide + _GAP)
    middle = left + wide / 2
    marks.box(page, left, _NODES, wide, _PANEL, fill=style.PANEL, corner=0.1)
    marks.label(page, left + 0.12, _NODES + 0.22, f"node{node}", colour=style.SOFT, align="left")
    marks.box(page, middle - 0.62, _NODES + 0.42, 1.24, 0.38, edge=style.FAINT)
    marks.label(page, middle, _NODES + 0.61, "torchrun", code=True)
    slots = _slots(job, node)
    for place, local in enumerate(slots):
        x = left + 0.1 + (place + 0.5) * (wide - 0.2) / len(slots)
        if local is None:
            marks.label(page, x, _NODES + 1.3, "…", colour=style.SOFT)
            continue
        marks.arrow(page, (middle, _NODES + 0.8), (x, _NODES + 1.13), line=1.4)
        _draw_rank(page, x, node * job.gpus + local, followed=node * job.gpus + local == job.rank)
    return middle


def _slots(job: _Allocation, node: int) -> list[int | None]:
    """Local ranks that are drawn; None for those left out between two."""
    if job.gpus <= _ALL_SHOWN:
        return [*range(job.gpus)]
    shown = sorted({0, job.local if node == job.node else 1, job.gpus - 1})
    slots: list[int | None] = [shown[0]]
    for before, after in pairwise(shown):
        slots += [None, after] if after > before + 1 else [after]
    return slots


def _draw_rank(page: Axes, x: float, rank: int, *, followed: bool) -> None:
    y = _NODES + 1.3
    if followed:
        marks.rank_badge(page, x, y, rank, width=0.4, height=_PILL, word=False)
        marks.arrow(page, (x, y + _PILL / 2), (x, _CARD), colour=style.rank_hue(rank))
    else:
        marks.box(page, x - 0.19, y - _PILL / 2, 0.38, _PILL, edge=style.FAINT, corner=_PILL / 2)
        marks.label(page, x, y, str(rank), size=style.SMALL_SIZE, colour=style.SOFT)


def _draw_card(page: Axes, job: _Allocation) -> None:
    """What the rank that is followed finds in its environment, and why."""
    wide, hue = style.PAGE_WIDTH - 2 * style.MARGIN, style.rank_hue(job.rank)
    marks.box(page, style.MARGIN, _CARD, wide, _CARD_TALL, edge=hue, line=2.2, corner=0.1)
    left, y = style.MARGIN + 0.2, _CARD + 0.28
    head = f"torchrun sets these for rank {job.rank}; the port is any free one of the first node"
    marks.label(page, left, y, head, bold=True, align="left")
    for number, line in enumerate(_environment(job), start=1):
        marks.label(page, left, y + number * _LINE, line, size=style.SMALL_SIZE, align="left", code=True)
    marks.label(page, left, y + 3 * _LINE, _reason(job), colour=style.SOFT, align="left")
