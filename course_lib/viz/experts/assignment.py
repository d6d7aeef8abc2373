"""Which experts the tokens go to, what is dropped on the way, and how even the experts' work is."""

from __future__ import annotations

from typing import Any

from course_lib.errors import four_parts
from course_lib.viz.experts.flows import LINES_TO, TOKEN, Flows
from course_lib.viz.experts.routes import Chosen, Routes
from course_lib.viz.ink import style
from course_lib.viz.ink.axis import Axis
from course_lib.viz.ink.bars import draw_parts
from course_lib.viz.ink.canvas import SMALL, WIDE, WIDE_EDGE, Canvas, text_on
from course_lib.viz.ink.drawing import Drawing
from course_lib.viz.ink.kinds import Kind
from course_lib.viz.ink.style import WRONG
from course_lib.viz.wires.holdings import check_picture_size

_TOP, _BOTTOM, _EXPERT = 118.0, 28.0, 46.0  # pixels; the last from one expert to the next
_NAMES, _LEFT, _RIGHT, _RANKS = 376.0, 470.0, 626.0, 774.0  # of the experts, of the bars, and the middle of the ranks
_BAR = 24.0
_MOST = 16


def plot_experts(
    chosen: Chosen,
    n_experts: int,
    *,
    ranks: int = 1,
    capacity: float | None = None,
    kind: Kind = "measured",
    title: str = "Which experts do the tokens go to?",
) -> Drawing:
    """Lines from tokens to experts, and each expert's rows as a bar against the fair share.

    `chosen` holds each token's experts by sequence: `indices.view(B, S, k).tolist()`. Sequences and experts are cut
    over the ranks; a line and its part of a bar have the hue of the token's rank, an expert's name that of its own.
    With a `capacity`, an expert takes so many fair shares of each sequence at most, the first ones.
    Of more than 32 tokens, each rank's rows are one band to each expert.
    Raises: ValueError for an expert that is not there, more ranks than sequences or experts, or too many experts.
    """
    check_picture_size("plot_experts", ranks)
    if not 1 <= n_experts <= _MOST:
        rule, way_out = f"this picture holds 1 to {_MOST} experts", "draw fewer: the pattern is the same"
        raise ValueError(four_parts("plot_experts", f"n_experts={n_experts}", rule, way_out))
    routes = Routes.of(chosen, n_experts, ranks, capacity)
    tokens = routes.n_tokens * TOKEN if routes.n_tokens <= LINES_TO else 0.0
    height = max(n_experts * _EXPERT, tokens, 200.0)
    subtitle = _subtitle(routes)
    canvas = Canvas(_TOP + height + _BOTTOM, title, subtitle, width=WIDE, kinds=[kind])
    middles = [_TOP + (expert + 0.5) * height / n_experts for expert in range(n_experts)]
    Flows(routes, _TOP, height, middles).draw(canvas)
    _draw_bars(canvas, routes, middles, height)
    if ranks > 1:
        _draw_ranks(canvas, routes, middles)
    return Drawing(canvas, title=title, description=_in_words(routes, subtitle), kinds=[kind])


def _subtitle(routes: Routes) -> str:
    dropped = sum(not row.kept for row in routes.rows)
    said = f"{routes.n_tokens} tokens make {len(routes.rows)} rows for {routes.n_experts} experts"
    if not routes.most:
        return said
    most = f"{min(routes.most)}" if len({*routes.most}) == 1 else f"{min(routes.most)} to {max(routes.most)}"
    return f"{said}; each takes {most} of a sequence at most, {dropped} {'is' if dropped == 1 else 'are'} dropped"


def _draw_bars(canvas: Canvas, routes: Routes, middles: list[float], height: float) -> None:
    """Each expert's rows by the ranks that they come from, what it drops in dashes, and the fair share as a line."""
    longest = max(routes.count(expert) + routes.count(expert, kept=False) for expert in range(routes.n_experts))
    axis = Axis(_LEFT, _RIGHT, max(2 * routes.fair, longest))
    for rank in range(routes.n_ranks):
        for expert in routes.experts_of(rank):
            y, kept, dropped = middles[expert], routes.count(expert), routes.count(expert, kept=False)
            _name_expert(canvas, expert, rank, y)
            sources = range(routes.n_ranks)
            parts = [(routes.count(expert, rank=source), style.rank_hue(source)) for source in sources]
            draw_parts(canvas, axis, y - _BAR / 2, _BAR, parts)
            canvas.text(_RIGHT + 32, y, str(kept), bold=True, align="end")
            if dropped:
                wide = axis.x(kept + dropped) - axis.x(kept)
                look: dict[str, Any] = {"stroke": WRONG, "stroke_width": 1.8, "stroke_dasharray": "4 3"}
                canvas.box(axis.x(kept) + 1, y - _BAR / 2 + 1, wide - 2, _BAR - 2, fill="none", **look)
                canvas.text(_RIGHT + 40, y, f"−{dropped}", size=SMALL, bold=True, colour=WRONG)
    x, d = axis.x(routes.fair), f"M{axis.x(routes.fair):g} {_TOP:g}v{height:g}"
    canvas.path(d, stroke=style.PAPER, stroke_width=5, fill="none")
    canvas.path(d, stroke=style.INK, stroke_width=1.8, stroke_dasharray="6 4", fill="none")
    canvas.text(x, _TOP - 16, f"fair share: {routes.fair:.3g} rows", size=SMALL, align="middle")
    canvas.text(WIDE_EDGE, _TOP - 16, "tokens", size=SMALL, colour=style.SOFT)
    if not all(row.kept for row in routes.rows):
        canvas.text(_RIGHT + 40, _TOP - 16, "dropped", size=SMALL, colour=WRONG)


def _name_expert(canvas: Canvas, expert: int, rank: int, y: float) -> None:
    hue = style.rank_hue(rank)
    canvas.box(_NAMES, y - 14, 84, 28, fill=hue, corner=14)
    canvas.text(_NAMES + 42, y, f"expert {expert}", size=SMALL, bold=True, align="middle", colour=text_on(hue))


def _draw_ranks(canvas: Canvas, routes: Routes, middles: list[float]) -> None:
    """What the experts of each rank compute together."""
    canvas.text(_RANKS, _TOP - 16, "work", size=SMALL, colour=style.SOFT, align="middle")
    total = sum(row.kept for row in routes.rows)
    for rank in range(routes.n_ranks):
        places = [middles[expert] for expert in routes.experts_of(rank)]
        x, y = _RANKS - 42, sum(places) / len(places)
        canvas.path(f"M{x:g} {places[0] - 18:g}V{places[-1] + 18:g}", stroke=style.rank_hue(rank), stroke_width=3)
        canvas.rank(_RANKS, y - 9, rank)
        share = f"{routes.received(rank) / total:.0%}"
        canvas.text(_RANKS, y + 15, share, size=SMALL, bold=True, align="middle")


def _in_words(routes: Routes, subtitle: str) -> str:
    """Each expert's rows and where they come from, and what each rank computes."""
    lines, total = [subtitle, f"a fair share is {routes.fair:.3g} rows"], sum(row.kept for row in routes.rows)
    for rank in range(routes.n_ranks):
        for expert in routes.experts_of(rank):
            sources = [routes.count(expert, rank=source) for source in range(routes.n_ranks)]
            came = ", ".join(f"{count} from rank {source}" for source, count in enumerate(sources) if count)
            dropped = routes.count(expert, kept=False)
            lost = f", {dropped} dropped" * bool(dropped)
            lines.append(f"  expert {expert} on rank {rank}: {routes.count(expert)} rows{lost}: {came or 'none'}")
    if routes.n_ranks > 1:
        ranks = ", ".join(
            f"rank {rank} {routes.received(rank)} ({routes.received(rank) / total:.0%})"
            for rank in range(routes.n_ranks)
        )
        lines.append(f"rows computed: {ranks}")
    return "\n".join(lines)
