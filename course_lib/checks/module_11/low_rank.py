"""11.6: a LoRA layer: how it is born, what it learns, what it costs, and what is left of it once it is merged."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from course_lib.checks.kit.asked import asked_exercise
from course_lib.checks.kit.form import wrong_form
from course_lib.checks.kit.parts import generator
from course_lib.checks.kit.probe import Slips
from course_lib.checks.kit.said import plural, wrong_kind
from course_lib.checks.kit.spec import Level
from course_lib.checks.kit.work import Work
from course_lib.checks.module_11.low_rank_layer import Low
from course_lib.verify.equality import close, no_multiple, scale_of
from course_lib.verify.ratios import exactly

_ROWS = (2, 3)  # of a batch and a sequence
_UPDATE = 1.5e-3  # of B A beside W, about, where it is rounded away
Look = Literal["born", "moved", "merged", "lost"]


@dataclass(frozen=True, kw_only=True)
class Narrow:
    """A frozen map, the rank beside it, and what is looked at."""

    look: Look
    sizes: tuple[int, int] = (7, 5)  # inputs, outputs
    rank: int = 2
    bias: bool = True
    world_size: int = 1

    def __str__(self) -> str:
        inputs, outputs = self.sizes
        return (
            f"{plural(inputs, 'input')}, {plural(outputs, 'output')}, r = {self.rank}{'' if self.bias else ', no bias'}"
        )


class _Beside(NamedTuple):
    """A map's tensors, the scale, rows with the gradient of what comes out, and an A and a B for later."""

    weight: Tensor
    bias: Tensor | None
    scale: float
    x: Tensor
    gradient: Tensor
    A: Tensor
    B: Tensor
    look: Look

    def __str__(self) -> str:
        return ""

    @property
    def update(self) -> Tensor:
        """s B A."""
        return self.scale * self.B @ self.A

    def base(self) -> nn.Linear:
        """A map of its own."""
        outputs, inputs = self.weight.shape
        base = nn.Linear(inputs, outputs, bias=self.bias is not None, dtype=self.weight.dtype)
        with torch.no_grad():
            base.weight.copy_(self.weight)
            if self.bias is not None:
                base.bias.copy_(self.bias)
        return base


def _records(case: Narrow, seed: int) -> Sequence[_Beside]:
    inputs, outputs = case.sizes
    source = generator(seed, inputs, outputs, case.rank, len(case.look))

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=source, dtype=torch.float64)

    small = _UPDATE / math.sqrt(case.rank) if case.look == "lost" else 1.0
    return [
        _Beside(
            weight=draw(outputs, inputs), bias=draw(outputs) if case.bias else None, scale=1.5 + seed % 3,
            x=draw(*_ROWS, inputs), gradient=draw(*_ROWS, outputs), A=draw(case.rank, inputs),
            B=small * draw(outputs, case.rank), look=case.look,
        )
    ]  # fmt: skip


def _use(answer: Callable[..., Any], given: _Beside) -> dict[str, Any] | str:
    """Runs on a rank: what is looked at, by name; a text says what cannot be looked at."""
    base = given.base()
    layer: Any = answer(base, len(given.A), given.scale)
    if not callable(getattr(layer, "named_parameters", None)):
        return wrong_kind(type(layer).__name__, "a module")
    for name, like in (("A", given.A), ("B", given.B)):
        one = getattr(layer, name, None)
        if not isinstance(one, nn.Parameter):
            return f"the layer has no parameter {name}"
        if one.shape != like.shape or one.dtype != like.dtype:
            return f"{name} is {one.dtype} of {tuple(one.shape)}, and {like.dtype} of {tuple(like.shape)} is expected"
    if given.look == "born":
        trained = sorted(name for name, one in layer.named_parameters() if one.requires_grad)
        plain = nn.functional.linear(given.x, given.weight, given.bias)
        equal, moves = torch.equal(layer(given.x), plain), _gradients(layer, given)
        # What A holds is drawn, so its numbers are not reported.
        return {"trained": trained, "A is 0": not bool(layer.A.any()), "equal": equal} | {
            name: moves[name] is not None and bool(moves[name].any()) for name in ("A", "B")
        }
    with torch.no_grad():
        layer.A.copy_(given.A)
        layer.B.copy_(given.B)
    if given.look == "moved":
        with Work() as work:
            output = layer(given.x)
        return {"output": output.detach(), "products": work.multiplications, **_gradients(layer, given)}
    if given.look == "lost":
        return {"lost": [_number(layer.lost(dtype)) for dtype in (torch.bfloat16, torch.float16)]}
    return _merged(layer, base, given)


def _gradients(layer: Any, given: _Beside) -> dict[str, Any]:
    x = given.x.clone().requires_grad_()
    output = layer(x)
    if not isinstance(output, Tensor) or not output.requires_grad:
        return {"x": None, "A": None, "B": None}
    output.backward(given.gradient)
    return {"x": x.grad, "A": layer.A.grad, "B": layer.B.grad}


def _merged(layer: Any, base: nn.Linear, given: _Beside) -> dict[str, Any]:
    before = layer(given.x).detach()
    found = layer.merged()
    if not isinstance(found, nn.Linear):
        return {"kind": type(found).__name__}
    again = layer(given.x).detach()
    same = found is base or found.weight.data_ptr() == base.weight.data_ptr()
    return {
        "kind": "", "weight": found.weight.detach().clone(), "base": torch.equal(base.weight, given.weight),
        "output": found(given.x).detach(), "still": close(again, before), "same": same,
    }  # fmt: skip


def _number(found: Any) -> Tensor | str:
    if not isinstance(found, int | float | Tensor):
        return type(found).__name__
    return torch.as_tensor(found, dtype=torch.float64).detach().clone()


def _right(given: _Beside) -> dict[str, Tensor]:
    """Of a layer whose A and B are those given."""
    of_weight = given.gradient.flatten(0, -2).T @ given.x.flatten(0, -2)  # (out, in)
    whole = given.weight + given.update
    return {
        "output": nn.functional.linear(given.x, whole, given.bias),
        "x": given.gradient @ whole,
        "A": given.scale * given.B.T @ of_weight,
        "B": given.scale * of_weight @ given.A.T,
        "weight": whole,
    }


def _judge(given: _Beside, found: dict[str, Any] | str) -> str | None:
    if isinstance(found, str):
        return found
    return {"born": _wrong_birth, "moved": _wrong_values, "merged": _wrong_merge, "lost": _wrong_loss}[given.look](
        given, found
    )


def _wrong_birth(given: _Beside, found: Mapping[str, Any]) -> str | None:
    if found["trained"] != ["A", "B"]:
        return f"trained are {', '.join(found['trained']) or 'no parameters'}, and A and B alone are to be"
    if not found["equal"]:
        return "a new layer does not give what the map gives, to the bit: what has B to be, for B A to be 0?"
    if found["A is 0"]:
        return "A and B are both 0. Each one's gradient has the other in it, so nothing would ever move"
    if not found["B"]:
        return "no gradient reaches B of a new layer, so it would never learn anything"
    if found["A"]:
        return "the gradient of A is not 0 in a new layer, and it has B in it"
    return None


def _wrong_values(given: _Beside, found: Mapping[str, Any]) -> str | None:
    right = _right(given)
    for name, what in (("output", "the output"), ("x", "x's gradient"), ("A", "A's gradient"), ("B", "B's gradient")):
        got: Tensor | str = found[name] if isinstance(found[name], Tensor) else type(found[name]).__name__
        if form := wrong_form(got, right[name], 1, ""):
            return f"{what}{form}"
        if reason := _unlike(got, right[name]):
            return f"{what} {reason}"
    rows, (outputs, inputs), rank = math.prod(_ROWS), given.weight.shape, len(given.A)
    most = rows * (inputs * outputs + rank * (inputs + outputs))
    if found["products"] > most:
        return (
            f"right, but forward makes {found['products']} multiplications, and {most} are enough: do you build B A, "
            "which is as large as the frozen matrix? Take x through A first, where only r numbers a row are left"
        )
    return None


def _unlike(got: Tensor | str, want: Tensor) -> str | None:
    if not isinstance(got, Tensor) or close(got, want):
        return None
    ratio = scale_of(got, want)
    return no_multiple(got, want) if ratio is None else f"is {exactly(ratio)} the reference"


def _wrong_merge(given: _Beside, found: Mapping[str, Any]) -> str | None:
    if found["kind"]:
        return f"merged() {wrong_kind(found['kind'], 'an nn.Linear')}"
    if found["same"] or not found["base"]:
        return "merging has changed the frozen map itself. Make a new one: the layer still adds B A to the old one"
    right = _right(given)
    for name, what in (("weight", "the merged weight"), ("output", "the merged map's output")):
        got: Tensor | str = found[name]
        if form := wrong_form(got, right[name], 1, ""):
            return f"{what}{form}"
        if reason := _unlike(got, right[name]):
            return f"{what} {reason}"
    return None if found["still"] else "right, but the layer itself gives something else after merging"


def _wrong_loss(given: _Beside, found: Mapping[str, Any]) -> str | None:
    for dtype, got in zip((torch.bfloat16, torch.float16), found["lost"], strict=True):
        if isinstance(got, str):
            return f"lost() {wrong_kind(got, 'a number')}"
        want = _lost(given, dtype)
        if not math.isclose(got.item(), want, rel_tol=1e-6):
            return f"lost({dtype}) is {got.item():.6g}, and {want:.6g} is right"
    return None


def _lost(given: _Beside, dtype: torch.dtype) -> float:
    whole = given.weight + given.update
    off = whole.to(dtype).to(whole.dtype) - whole
    return (off.norm() / given.update.norm()).item()


def _way(mistake: str) -> Callable[..., Any]:
    return partial(Low, mistake=mistake)


_SLIPS: Slips = {
    "the frozen map is trained as well, so nothing is saved": _way("not frozen"),
    "the map's bias is trained as well. It belongs to what is frozen": _way("bias"),
    "A and B are both 0. Each one's gradient has the other in it, so neither would ever move": _way("both 0"),
    "B is not 0 at the beginning, so a new layer is not what the map was": _way("B random"),
    "A is 0 and B is random. That trains as well, but asked is the other way round, as everybody has it": _way(
        "A is 0"
    ),
    "a new layer gives B A x alone: where is the map?": _way("alone"),
    "the scale is missing": _way("scale"),
    "the scale is divided by r. It comes as it is to be used": _way("by rank"),
    "A gets no gradient": _way("detached"),
    "the scale is missing in the merged weight": _way("merged scale"),
    "the merged weight is the update alone, without the frozen weight": _way("update alone"),
    "merged() has added the update to the frozen map itself, and the layer will add it once more": _way("in place"),
    "the merged map has lost the bias": _way("no bias"),
    "that is relative to the weight. Asked is what is lost of the update": _way("of the weight"),
    "the update alone was rounded, which loses little. It is lost in the sum, which is much larger": (
        _way("update rounded")
    ),
    "those are squares: a norm is the root of their sum": _way("squares"),
    "that is the share of the numbers that do not move at all": _way("unmoved"),
}

_LOW_RANK = asked_exercise(
    key="11.6",
    title="a LoRA layer, and its merge",
    records=_records,
    use=_use,
    judge=_judge,
    slips=_SLIPS,
    levels={
        "born": Level(
            points=1,
            cases=(Narrow(look="born"),),
            praise="born as the frozen map, to the bit, and B alone has a gradient in the first step",
        ),
        "moved": Level(
            points=2,
            again=True,
            cases=(Narrow(look="moved"), Narrow(look="moved", sizes=(4, 9), rank=1, bias=False)),
            praise="the gradient of B is s dW A.T and that of A is s B.T dW, and nothing as large as W was built",
        ),
        "merged": Level(
            points=1,
            cases=(Narrow(look="merged"), Narrow(look="merged", sizes=(3, 6), rank=3, bias=False)),
            praise="one map that does the same, with nothing beside it",
        ),
        "lost": Level(
            points=1,
            cases=(Narrow(look="lost", sizes=(40, 30), rank=4),),
            praise="merged into bf16 much of what was learnt is rounded away: keep adapters, or merge in fp32",
        ),
    },
    hints=(
        "A is (r, in) and random, B is (out, r) and 0, in the dtype of the map's weight. The map's own parameters are "
        "frozen: base.requires_grad_(False).",
        "Forward: self.base(x) plus s times (x @ A.T) @ B.T. With the brackets so, a row has only r numbers in "
        "between. B @ A would be as large as the frozen matrix, and its gradient too.",
        "merged(): a new nn.Linear of the same sizes and dtype, with a bias if the map has one. Under torch.no_grad() "
        "copy W + s B A into its weight.",
        "lost(dtype): whole = W + s B A. Round it, go back with .to(whole.dtype), and subtract `whole`. The norm of "
        "that, divided by the norm of s B A.",
    ),
)
