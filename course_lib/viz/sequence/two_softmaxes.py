"""One query's softmax over keys that two ranks share: why two softmaxes do not add up, and how they merge."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, isfinite
from typing import Any

from course_lib.errors import four_parts
from course_lib.sequence_cut import SequenceCut
from course_lib.viz.ink import style
from course_lib.viz.ink.canvas import SMALL, WIDE, WIDE_EDGE, Canvas, rectangles
from course_lib.viz.ink.drawing import Drawing

_FOOT, _TALL = 262.0, 134.0  # of the bars; a weight of 1
_NAMES, _PANEL, _APART = 78.0, 214.0, 25.0  # pixels across: the rows' names, a column, from one to the next
_LINE, _HEIGHT, _HEIGHT_OF_WEIGHTS = 24.0, 516.0, 386.0
_BAR = 0.72  # of a key's place, which has room for its number
_MOST = 6  # keys


@dataclass(frozen=True)
class _Softmax:
    """What is known of a softmax over some keys; nothing is divided yet."""

    max: float
    sum: float  # of e^(score - max)
    out: float  # of e^(score - max) x value
    weights: dict[int, float]  # by key

    @classmethod
    def of(cls, scores: Sequence[float], values: Sequence[float], keys: Sequence[int]) -> _Softmax:
        largest = max(scores[key] for key in keys)
        parts = {key: exp(scores[key] - largest) for key in keys}
        total = sum(parts.values())
        out = sum(part * values[key] for key, part in parts.items())
        return cls(largest, total, out, {key: part / total for key, part in parts.items()})


def plot_two_softmaxes(
    scores: Sequence[float], values: Sequence[float], cut: SequenceCut | None = None, *, carried: bool = True
) -> Drawing:
    """The weights that each of two ranks finds for its own keys, and those of the whole; if asked, what is `carried`.

    One query has a score and a value, a single number, for each key; without a `cut` the ranks have half of them each.
    Raises: ValueError for fewer than 2 keys or more than 8, numbers that do not match the cut, or no 2 ranks.
    """
    cut = cut or SequenceCut(max(len(scores), 2), 2)
    _check(scores, values, cut)
    title, n = f"Two softmaxes of one query, and {'how they merge' if carried else 'the whole'}", len(scores)
    subtitle = f"{n} keys on 2 ranks; a bar is a key's weight, in dashes what its rank alone gives it"
    alone = [_Softmax.of(scores, values, cut.positions(rank)) for rank in range(2)]
    whole = _Softmax.of(scores, values, range(n))
    height = _HEIGHT if carried else _HEIGHT_OF_WEIGHTS
    canvas = Canvas(height, title, subtitle, width=WIDE, kinds=["formula"])
    for number, softmax in enumerate([*alone, whole]):
        left = WIDE_EDGE + _NAMES + number * (_PANEL + _APART)
        _draw_heading(canvas, left, number)
        _draw_weights(canvas, left, softmax, cut, alone if softmax is whole else [])
        _write_keys(canvas, left, softmax, scores, values)
        if carried:
            factor = exp(softmax.max - whole.max)
            numbers = [softmax.max, softmax.sum, softmax.out, factor, softmax.out / softmax.sum]
            _write_carried(canvas, left, numbers, merged=softmax is whole)
    _write_names(canvas, carried=carried)
    words = _in_words(subtitle, alone, whole, carried=carried)
    return Drawing(canvas, title=title, description=words, kinds=["formula"])


def _check(scores: Sequence[float], values: Sequence[float], cut: SequenceCut) -> None:
    n, operation = len(scores), "plot_two_softmaxes"
    if not 2 <= n <= _MOST or len(values) != n or (cut.length, cut.size) != (n, 2):
        given = f"{n} scores, {len(values)} values, {cut.length} keys on {cut.size} ranks"
        rule = f"2 ranks share 2 to {_MOST} keys, each of which has a score and a value"
        raise ValueError(four_parts(operation, given, rule, f"pass SequenceCut({max(2, min(n, _MOST))}, 2) or none"))
    if not all(map(isfinite, [*scores, *values])):
        rule, way_out = "this picture holds finite numbers", "leave masked keys out"
        raise ValueError(four_parts(operation, f"scores={list(scores)}, values={list(values)}", rule, way_out))


def _draw_heading(canvas: Canvas, left: float, number: int) -> None:
    if number < 2:
        canvas.rank(left + 31, 96, number)
        canvas.text(left + 72, 96, "alone, adds up to 1")
    else:
        canvas.text(left, 96, "merged, adds up to 1", bold=True)


def _draw_weights(canvas: Canvas, left: float, softmax: _Softmax, cut: SequenceCut, alone: Sequence[_Softmax]) -> None:
    """A bar for each key in the hue of its rank, and a ghost of its weight `alone`."""
    slot = _PANEL / cut.length
    canvas.path(rectangles([(left, _FOOT, _PANEL, 1.2)]), fill=style.FAINT)
    for rank in range(2):
        for key in cut.positions(rank):
            if key in softmax.weights:
                weight, ghost = softmax.weights[key], alone[rank].weights[key] if alone else 0.0
                _draw_bar(canvas, left + (key + 0.5) * slot, slot, weight * _TALL, ghost * _TALL, rank)


def _draw_bar(canvas: Canvas, x: float, slot: float, tall: float, ghost: float, rank: int) -> None:
    canvas.box(x - _BAR * slot / 2, _FOOT - tall, _BAR * slot, tall, fill=style.rank_hue(rank))
    if ghost:
        look: dict[str, Any] = {"stroke": style.INK, "stroke_width": 1.4, "stroke_dasharray": "4 3", "fill": "none"}
        wide = _BAR * slot
        canvas.path(f"M{x - wide / 2:.5g} {_FOOT:g}v{-ghost:.5g}h{wide:.5g}v{ghost:.5g}", **look)


def _write_keys(
    canvas: Canvas, left: float, softmax: _Softmax, scores: Sequence[float], values: Sequence[float]
) -> None:
    """Below its bar each key's number, score, value and weight; dots for the keys of the other rank."""
    slot = _PANEL / len(scores)
    for key in range(len(scores)):
        x, here = left + (key + 0.5) * slot, key in softmax.weights
        weight = f"{softmax.weights[key]:.2f}" if here else ""
        for line, words in enumerate((str(key), _short(scores[key]), _short(values[key]), weight)):
            look: dict[str, Any] = {"colour": style.INK if line and here else style.SOFT}
            y = _FOOT + 18 + line * _LINE
            canvas.text(x, y, words if here else "·", size=SMALL, align="middle", **look)


def _write_carried(canvas: Canvas, left: float, numbers: Sequence[float], *, merged: bool) -> None:
    """Max, sum and out, the factor with which sum and out enter the whole, and what attention gives."""
    top = _FOOT + 18 + 4 * _LINE + 12
    canvas.box(left, top - 14, _PANEL, 3 * _LINE + 4, fill=style.PANEL, corner=6)
    for line, number in enumerate(numbers):
        words, y = f"{number:.2f}", top + line * _LINE + 6 * (line > 2)
        if line == 3 and merged:
            canvas.text(left + _PANEL / 2, y, "e^(a rank's max − max)", size=SMALL, colour=style.SOFT, align="middle")
        else:
            canvas.text(left + _PANEL / 2, y, words, size=SMALL, bold=line in (0, 1, 2, 4), align="middle")


def _write_names(canvas: Canvas, *, carried: bool) -> None:
    look: dict[str, Any] = {"size": SMALL, "colour": style.SOFT}
    for line, words in enumerate(("key", "score", "value", "weight")):
        canvas.text(WIDE_EDGE, _FOOT + 18 + line * _LINE, words, **look)
    top = _FOOT + 18 + 4 * _LINE + 12
    for line, words in enumerate(("max", "sum", "out", "factor", "out / sum") if carried else ()):
        canvas.text(WIDE_EDGE, top + line * _LINE + 6 * (line > 2), words, **look)


def _short(number: float) -> str:
    return f"{number:.3g}".replace("-", "−")


def _in_words(subtitle: str, alone: Sequence[_Softmax], whole: _Softmax, *, carried: bool) -> str:
    """Every weight, and what is carried."""
    lines, names = [subtitle], ["rank 0 alone", "rank 1 alone", "merged"]
    for name, softmax in zip(names, [*alone, whole], strict=True):
        weights = ", ".join(f"key {key} {weight:.2f}" for key, weight in softmax.weights.items())
        factor = "" if softmax is whole else f", factor {exp(softmax.max - whole.max):.2f}"
        numbers = f"max {softmax.max:.2f}, sum {softmax.sum:.2f}, out {softmax.out:.2f}{factor}"
        more = f"; {numbers}; out / sum {softmax.out / softmax.sum:.2f}" if carried else ""
        lines.append(f"  {name}: {weights}{more}")
    return "\n".join(lines)
