"""From tokens to experts: a line for each row, or a band for each rank's rows where there are too many tokens."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import Any, NamedTuple

from course_lib.viz.experts.routes import Routes, Row
from course_lib.viz.ink import style
from course_lib.viz.ink.canvas import WIDE_EDGE, Canvas, text_on
from course_lib.viz.ink.style import WRONG

LINES_TO = 32  # tokens; more of them are drawn as their ranks' bands
TOKEN = 20.0  # pixels from one token to the next
_LEFT, _WIDE, _RIGHT, _STOP = 112.0, 26.0, 372.0, 330.0  # of the tokens; where lines end, and where dropped ones do
_THICK, _FULL, _CROSS = (
    4.0,
    0.9,
    10.0,
)  # pixels of a row by itself; of the height that bands may take; pixels of a cross


class _Flow(NamedTuple):
    """Rows that go the same way: from a token, or from all tokens of a rank, to an expert."""

    source: int
    rank: int
    expert: int
    kept: bool


@dataclass(frozen=True)
class Flows:
    """Where rows leave and arrive; `middles` are those of the experts."""

    routes: Routes
    top: float
    height: float
    middles: list[float]

    @property
    def single(self) -> bool:
        """Whether each row has a line of its own."""
        return self.routes.n_tokens <= LINES_TO

    @property
    def shown(self) -> list[Row]:
        """Bands are of rows that are kept; where each row has a line, one that is dropped has a line too."""
        return [row for row in self.routes.rows if row.kept or self.single]

    def draw(self, canvas: Canvas) -> None:
        """What is dropped below the rest, then the tokens that all come from."""
        counts = Counter(
            _Flow(row.token if self.single else row.rank, row.rank, row.expert, row.kept) for row in self.shown
        )
        row = _THICK if self.single else self._band()
        widths = {flow: count * row for flow, count in sorted(counts.items())}
        apart = {flow: wide if flow.kept else _CROSS for flow, wide in widths.items()}
        ends = _stacked(apart, dict(enumerate(self.middles)), by_expert=True)
        starts = _stacked(widths, self._sources(), by_expert=False)
        for flow, wide in sorted(widths.items(), key=lambda one: one[0].kept):
            _draw_flow(canvas, flow, starts[flow], ends[flow], wide)
        if self.single:
            self._draw_tokens(canvas)
        else:
            self._draw_bands(canvas, row)

    def _band(self) -> float:
        """Pixels of a row, such that neither ranks nor experts touch each other."""
        n_ranks, n_experts = self.routes.n_ranks, self.routes.n_experts
        by_rank, by_expert = (Counter(getattr(row, end) for row in self.shown) for end in ("rank", "expert"))
        return _FULL * self.height * min(1 / n_ranks / max(by_rank.values()), 1 / n_experts / max(by_expert.values()))

    def _sources(self) -> dict[int, float]:
        """The middle of each token, or of each rank's tokens."""
        n = self.routes.n_tokens if self.single else self.routes.n_ranks
        return {source: self.top + (source + 0.5) * self.height / n for source in range(n)}

    def _draw_tokens(self, canvas: Canvas) -> None:
        """Each token with its number, and the rank beside its tokens."""
        places, by_rank = self._sources(), defaultdict[int, list[float]](list)
        for token, rank in sorted({(row.token, row.rank) for row in self.shown}):
            by_rank[rank].append(places[token])
            hue = style.rank_hue(rank)
            canvas.box(_LEFT, places[token] - 9, _WIDE, 18, fill=hue, corner=3)
            look: dict[str, Any] = {"size": 13, "align": "middle", "colour": text_on(hue)}
            canvas.text(_LEFT + _WIDE / 2, places[token], str(token), **look)
        for rank, found in by_rank.items():
            canvas.rank(WIDE_EDGE + 31, sum(found) / len(found), rank)

    def _draw_bands(self, canvas: Canvas, row: float) -> None:
        """Each rank's rows together."""
        for rank, place in self._sources().items():
            tall = row * sum(one.rank == rank for one in self.shown)
            canvas.box(_LEFT, place - tall / 2, _WIDE, tall, fill=style.rank_hue(rank), corner=3)
            canvas.rank(WIDE_EDGE + 31, place, rank)


def _stacked(widths: dict[_Flow, float], middles: dict[int, float], *, by_expert: bool) -> dict[_Flow, float]:
    """The middle of each flow at one of its ends, where all that meet there lie upon each other."""
    groups = defaultdict[int, list[_Flow]](list)
    for flow in widths:
        groups[flow.expert if by_expert else flow.source].append(flow)
    found = {}
    for place, flows in groups.items():
        y = middles[place] - sum(widths[flow] for flow in flows) / 2
        for flow in flows:
            found[flow] = y + widths[flow] / 2
            y += widths[flow]
    return found


def _draw_flow(canvas: Canvas, flow: _Flow, start: float, end: float, wide: float) -> None:
    """A dropped one stops before its expert, at a cross."""
    left, right = _LEFT + _WIDE, _RIGHT if flow.kept else _STOP
    bend = (left + right) / 2
    d = f"M{left:g} {start:.5g}C{bend:g} {start:.5g} {bend:g} {end:.5g} {right:g} {end:.5g}"
    if flow.kept:
        canvas.path(d, fill="none", stroke=style.rank_hue(flow.rank), stroke_width=f"{0.8 * wide:.4g}", opacity=0.85)
    else:
        canvas.path(d, fill="none", stroke=WRONG, stroke_width=2, stroke_dasharray="6 3")
        cross = f"M{right - 1:g} {end - 4:.5g}l8 8m0-8l-8 8"
        canvas.path(cross, fill="none", stroke=WRONG, stroke_width=2.4)
