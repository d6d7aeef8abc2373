"""A number as five formats hold it: sign, exponent, mantissa, and what rounding makes of it."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable
from dataclasses import dataclass
from math import inf, isinf, isnan

from course_lib.errors import four_parts
from course_lib.viz.ink import style
from course_lib.viz.ink.canvas import WIDE, WIDE_EDGE, Canvas, text_on, text_width
from course_lib.viz.ink.drawing import Drawing
from course_lib.viz.widgets import controls
from course_lib.viz.widgets.controls import Panel
from course_lib.viz.widgets.explorer import Explorer

# name -> dtype of torch, bits of the exponent, bits of the mantissa
_FORMATS = {
    "fp32": ("float32", 8, 23),
    "bf16": ("bfloat16", 8, 7),
    "fp16": ("float16", 5, 10),
    "fp8 e4m3": ("float8_e4m3fn", 4, 3),
    "fp8 e5m2": ("float8_e5m2", 5, 2),
}
_HUES = {"sign": style.SOFT, "exponent": "#9BD3C9", "mantissa": "#DCD6F7"}
_LEGEND, _TOP = 106.0, 146.0  # the legend's middle; where the first row begins
_CELL, _GAP, _TALL, _STEP, _BELOW = 21.0, 1.6, 29.0, 77.0, 17.0  # of a bit and a row; from the bits down to their words
_SWATCH, _BESIDE, _APART = 17.0, 6.0, 25.0  # of the legend
_LEFT = WIDE - WIDE_EDGE - (32 * _CELL - _GAP)  # fp32 ends where the remarks do
_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")

_SIGNS: dict[type, Callable[[float], float]] = {ast.USub: operator.neg, ast.UAdd: operator.pos}
_ARITHMETIC: dict[type, Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
}


@dataclass(frozen=True, kw_only=True)
class FloatBits:
    """What one format makes of a number."""

    name: str
    bits: str  # sign, exponent, mantissa
    exponent_bits: int
    number: float  # as it was before
    value: float  # as the format holds it
    largest: float  # finite number of the format

    @property
    def fields(self) -> dict[str, str]:
        """The bits by what they mean."""
        split = 1 + self.exponent_bits
        return {"sign": self.bits[0], "exponent": self.bits[1:split], "mantissa": self.bits[split:]}

    @property
    def relative_error(self) -> float:
        """|value - number| / |number|; inf after an overflow, nan for what is not a number."""
        if self.value == self.number:
            return 0.0
        return abs(self.value - self.number) / abs(self.number) if not isinf(self.number) else inf

    @property
    def formula(self) -> str:
        """The bits as arithmetic; empty for 0, inf and nan."""
        if isnan(self.value) or isinf(self.value) or self.value == 0:
            return ""
        exponent, mantissa = int(self.fields["exponent"], 2), self.fields["mantissa"]
        power = max(exponent, 1) - (2 ** (self.exponent_bits - 1) - 1)
        factor = (exponent > 0) + int(mantissa, 2) / 2 ** len(mantissa)
        return f"{'-' if self.value < 0 else ''}2^{power} × {factor:.9g}"

    @property
    def remark(self) -> str:
        """How far off, in words."""
        if isnan(self.value):
            return "not a number"
        if self.relative_error == 0:
            return "exact"
        if isinf(self.value):
            return f"overflow: the largest is {_short(self.largest)}"
        if isinf(self.number):
            return "cut to the largest: the format has no inf"
        if abs(self.number) > self.largest:
            return f"cut to the largest, relative error {self.relative_error:.2g}"
        if self.value == 0:
            return "underflow to 0, relative error 1"
        return f"relative error {self.relative_error:.2g}"


def as_formats(number: float) -> list[FloatBits]:
    """`number` as PyTorch rounds it: to fp32, and from there to each smaller format."""
    import torch  # the other figures do without it

    single = torch.tensor(number, dtype=torch.float64).to(torch.float32)
    found = []
    for name, (dtype, exponent_bits, mantissa_bits) in _FORMATS.items():
        rounded = single.to(getattr(torch, dtype))
        size = 1 + exponent_bits + mantissa_bits
        pattern = int(rounded.view({8: torch.uint8, 16: torch.int16, 32: torch.int32}[size])) % 2**size
        found.append(
            FloatBits(
                name=name,
                bits=f"{pattern:0{size}b}",
                exponent_bits=exponent_bits,
                number=number,
                value=float(rounded.to(torch.float64)),
                largest=torch.finfo(rounded.dtype).max,
            )
        )
    return found


def float_bits(value: float) -> Drawing:
    """The bits of a number in fp32, bf16, fp16 and both fp8, the rounded number and its relative error.

    Source: bits and roundings are PyTorch's own on a CPU, to fp32 first; its e4m3 has no infinity.
    """
    rows = as_formats(float(value))
    title = f"{_short(value)} in five formats"
    subtitle = "rounded to fp32, and from there to the others, as PyTorch does"
    canvas = Canvas(_TOP + _STEP * len(rows), title, subtitle, width=WIDE)
    _draw_legend(canvas)
    for number, row in enumerate(rows):
        _draw_row(canvas, _TOP + number * _STEP, row)
    return Drawing(canvas, title=title, description="\n".join([subtitle, *(_in_words(row) for row in rows)]))


def _draw_legend(canvas: Canvas) -> None:
    x = _LEFT
    for name, hue in _HUES.items():
        canvas.box(x, _LEGEND - _SWATCH / 2, _SWATCH, _SWATCH, fill=hue, corner=2.5)
        canvas.text(x + _SWATCH + _BESIDE, _LEGEND, name)
        x += _SWATCH + _BESIDE + text_width(name) + _APART


def _draw_row(canvas: Canvas, y: float, row: FloatBits) -> None:
    canvas.text(WIDE_EDGE, y + _TALL / 2, row.name, bold=True)
    fields = ((field, bit) for field, bits in row.fields.items() for bit in bits)
    for place, (field, bit) in enumerate(fields):
        x, hue = _LEFT + place * _CELL, _HUES[field]
        canvas.box(x, y, _CELL - _GAP, _TALL, fill=hue, corner=2.5)
        canvas.text(x + (_CELL - _GAP) / 2, y + _TALL / 2, bit, colour=text_on(hue), align="middle")
    shown = f"{_raised(row.formula)} = {_short(row.value)}" if row.formula else _short(row.value)
    below = y + _TALL + _BELOW
    canvas.text(_LEFT, below, shown)
    off = row.relative_error > 0 or isnan(row.value)
    canvas.text(WIDE - WIDE_EDGE, below, row.remark, bold=off, colour=style.INK if off else style.SOFT, align="end")


def _raised(formula: str) -> str:
    """2^-4 as one prints it; words keep the sign for a power."""
    return re.sub(r"\^(-?\d+)", lambda power: power[1].translate(_RAISED), formula)


def _short(value: float) -> str:
    """Nine digits, enough to tell two fp32 numbers apart."""
    return f"{value:.9g}"


def _in_words(row: FloatBits) -> str:
    fields = ", ".join(f"{field} {bits}" for field, bits in row.fields.items())
    formula = f" = {row.formula}" if row.formula else ""
    return f"  {row.name}: {fields}; {_short(row.value)}{formula}; {row.remark}"


def float_bits_explorer() -> Explorer:
    """A field for a number, or a sum of some, above its bits."""
    field = controls.words("a number", "65504 + 16")
    return Explorer(Panel(draw=lambda text: float_bits(parse_number(text)), controls={"text": field}))


def parse_number(text: str) -> float:
    """A number as one types it, also as arithmetic: 65504 + 16, 2**-14 / 3, -inf.

    Raises: ValueError for anything else.
    """
    try:
        return _value_of(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, TypeError, ArithmeticError, RecursionError) as error:
        rule = "a number, or arithmetic on numbers with a real value"
        raise ValueError(four_parts("float_bits_explorer", repr(text), rule, "type 0.1 or 65504 + 16")) from error


def _value_of(node: ast.expr) -> float:
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float) and not isinstance(node.value, bool):
        return float(node.value)
    if isinstance(node, ast.Name) and node.id in ("inf", "nan"):
        return float(node.id)
    if isinstance(node, ast.UnaryOp) and type(node.op) in _SIGNS:
        return _SIGNS[type(node.op)](_value_of(node.operand))
    if isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
        value = _ARITHMETIC[type(node.op)](_value_of(node.left), _value_of(node.right))
        if isinstance(value, float):
            return value
    raise TypeError(ast.dump(node))
