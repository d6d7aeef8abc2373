"""04.8: a linear layer whose backward comes in two parts, and what it keeps between them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from typing import Any, NamedTuple

import torch
from torch import Tensor

from course_lib.checks.kit.meter import Meter, Metered
from course_lib.checks.kit.probe import ProbeExercise
from course_lib.checks.kit.said import wrong_kind
from course_lib.checks.kit.spec import Level
from course_lib.comm.ledger import Ledger
from course_lib.verify.equality import close, scale_of
from course_lib.verify.ratios import exactly, times

NAMES = ("the output", "the input's gradient", "the weight's gradient", "the bias's gradient")
_OUTPUT, _INPUT, _WEIGHT, _BIAS = range(4)
BACKWARD = ("backward_input", "backward_weight")
_OWNERS = {
    "forward": "x, which belongs to the layer before",
    "backward_input": "the gradient of y, which belongs to the layer after",
}
_OWN_TENSORS = "does each object keep its own tensors, in self?"


@dataclass(frozen=True, kw_only=True)
class Layer:
    """A layer and the shapes of several micro-batches' inputs, without their last dim."""

    shapes: tuple[tuple[int, ...], ...] = ((4,),)
    n_in: int = 6
    n_out: int = 5
    looks_at_cost: bool = False
    world_size: int = 1

    def __str__(self) -> str:
        inputs = " and ".join(str((*shape, self.n_in)) for shape in self.shapes)
        return f"a {self.n_in}-{self.n_out} layer, input{'s' * (len(self.shapes) > 1)} {inputs}"


class Given(NamedTuple):
    """The layer, and by micro-batch its input and the gradient of its output."""

    weight: Tensor
    bias: Tensor
    parts: list[tuple[Tensor, Tensor]]
    looks_at_cost: bool = False


class TwoPartsReport(NamedTuple):
    """By micro-batch and method what came out and was computed; the bytes kept between the parts of all, and after."""

    results: list[dict[str, Any]]
    works: list[dict[str, Metered]]
    overwritten: str
    between: int
    after: int


def draw(case: Layer, seed: int) -> Given:
    """Random numbers in fp64."""
    generator = torch.Generator().manual_seed(seed * 1009 + case.n_in + sum(map(len, case.shapes)))

    def numbers(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    parts = [(numbers(*shape, case.n_in), numbers(*shape, case.n_out)) for shape in case.shapes]
    return Given(numbers(case.n_out, case.n_in), numbers(case.n_out), parts, case.looks_at_cost)


class _Trial:
    """The answer's objects, one for each micro-batch, and what their methods do."""

    def __init__(self, answer: Callable[..., Any], given: Given) -> None:
        self.given, self.meter = given, Meter()
        self.objects = [answer() for _ in given.parts]
        self.results: list[dict[str, Any]] = [{} for _ in given.parts]
        self.works: list[dict[str, Metered]] = [{} for _ in given.parts]
        self.handed: list[tuple[str, Tensor, Tensor]] = []
        self.overwritten = ""

    def call(self, method: str, number: int, *parameters: Tensor) -> None:
        """Of one object."""
        function = getattr(self.objects[number], method)
        result, work = self.meter.measure(function, *self._hand_out(method, number), *parameters)
        self.results[number][method], self.works[number][method] = _copied(result), work
        for owner, tensor, before in self.handed:
            if not self.overwritten and not torch.equal(tensor, before):
                self.overwritten = f"{method} overwrites {owner}: work on a copy"

    def _hand_out(self, method: str, number: int) -> list[Tensor]:
        """The micro-batch's tensor for this method. Where memory is measured, the answer alone may keep it."""
        if method not in _OWNERS:
            return []
        before = self.given.parts[number][list(_OWNERS).index(method)]
        tensor = before.clone()
        self.meter.note([tensor])
        if not self.given.looks_at_cost:
            self.handed.append((_OWNERS[method], tensor, before))
        return [tensor]


def attempt(answer: Callable[..., Any], given: Given) -> TwoPartsReport:
    """Runs on a rank: all forwards, all first parts, all second parts.

    Each in another order: if objects share a queue or a stack, they get each other's tensors.
    """
    weight, bias = torch.nn.Parameter(given.weight), torch.nn.Parameter(given.bias)
    trial, numbers = _Trial(answer, given), range(len(given.parts))
    for number in numbers:
        trial.call("forward", number, weight, bias)
    for number in [*numbers[1:], *numbers[:1]]:
        trial.call("backward_input", number)
    between = trial.meter.live_bytes(besides=(weight, bias)) if given.looks_at_cost else 0
    for number in [*numbers[2:], *numbers[:2]]:
        trial.call("backward_weight", number)
    after = trial.meter.live_bytes(besides=(weight, bias)) if given.looks_at_cost else 0
    return TwoPartsReport(trial.results, trial.works, trial.overwritten, between, after)


def _copied(value: Any) -> Any:
    """What a method returned, as tensors with memory of their own; anything else by its type's name."""
    if isinstance(value, tuple | list):
        return [_copied(one) for one in value]
    return value.detach().clone() if isinstance(value, Tensor) else "None" if value is None else type(value).__name__


def verdict(case: Layer, given: Given, reports: tuple[Any, ...], book: Ledger) -> str | None:
    """Values, then multiplications and memory."""
    report: TwoPartsReport = reports[0]
    if report.overwritten:
        return f"{case}: {report.overwritten}"
    for number, (found, works) in enumerate(zip(report.results, report.works, strict=True)):
        which = f", micro-batch {number}" if len(given.parts) > 1 else ""
        reason = _wrong_form(found, given) or _wrong_values(found, given, number)
        if reason is None and case.looks_at_cost:
            reason = _wrong_work(works, *given.parts[number])
        if reason:
            return f"{case}{which}: {reason}"
    reason = _wrong_memory(report, given) if case.looks_at_cost else None
    return f"{case}: values right, but {reason}" if reason else None


def reference(given: Given, number: int) -> list[Tensor]:
    """Output and gradients by autograd."""
    (x, gradient), weight, bias = given.parts[number], given.weight, given.bias
    leaves = [one.clone().requires_grad_() for one in (x, weight, bias)]
    y = torch.nn.functional.linear(*leaves)
    return [y.detach(), *torch.autograd.grad(y, leaves, gradient)]


def _wrong_form(found: dict[str, Any], given: Given) -> str | None:
    for method in ("forward", "backward_input"):
        if not isinstance(found[method], Tensor):
            return f"{method} {wrong_kind(_shown(found[method]), 'one tensor')}"
    second = found["backward_weight"]
    if not isinstance(second, list) or len(second) != 2 or not all(isinstance(one, Tensor) for one in second):
        return f"backward_weight returned {_shown(second)}: return two tensors, for the weight and for the bias"
    if [one.shape for one in second] == [given.bias.shape, given.weight.shape]:
        return "backward_weight returned (bias, weight)? The weight's gradient comes first"
    return None


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return f"({', '.join(map(_shown, value))})"
    return f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else str(value)


def _wrong_values(found: dict[str, Any], given: Given, number: int) -> str | None:
    tensors = [found["forward"], found["backward_input"], *found["backward_weight"]]
    for place, (name, got, right) in enumerate(zip(NAMES, tensors, reference(given, number), strict=True)):
        if got.shape != right.shape:
            turned = ": is it turned round? weight is (out, in)" * (got.shape == right.shape[::-1])
            return f"{name} has shape {tuple(got.shape)}, expected {tuple(right.shape)}{turned}"
        if got.dtype != right.dtype:
            return f"{name} is {got.dtype}, expected {right.dtype} as x"
        if not close(got, right):
            return f"{name} {_signature(place, got, right, given, number)}"
    return None


def _signature(place: int, got: Tensor, right: Tensor, given: Given, number: int) -> str:
    mixed = _mixed_up(place, got, given, number)
    if mixed:
        return f"{mixed}: {_OWN_TENSORS}"
    if place == _OUTPUT and close(got, right - given.bias):
        return "lacks the bias"
    ratio = scale_of(got, right)
    if ratio is None:
        return "is no multiple of the reference"
    rows = len(given.parts[number][1].flatten(0, -2))
    meaning = {0.0: ": nothing was added up", round(1 / rows, 12): ": a mean over rows, where a sum belongs"}
    return f"is {exactly(ratio)} the reference{meaning.get(round(ratio, 12), '')}"


def _mixed_up(place: int, got: Tensor, given: Given, number: int) -> str:
    """Whether it is made from another micro-batch's tensors."""
    for other in range(len(given.parts)):
        if other != number and close(got, reference(given, other)[place]):
            return f"is micro-batch {other}'s"
    pairs = product(range(len(given.parts)), repeat=2) if place == _WEIGHT else ()
    for one, other in pairs:
        gradient, x = given.parts[one][1].flatten(0, -2), given.parts[other][0].flatten(0, -2)
        if len(gradient) == len(x) and close(got, gradient.T @ x):
            return f"is made of micro-batch {one}'s gradient of y and micro-batch {other}'s x"
    return ""


def _wrong_work(works: dict[str, Metered], x: Tensor, gradient: Tensor) -> str | None:
    target = 2 * x.numel() * gradient.shape[-1]
    for method in BACKWARD:
        if works[method].autograd:
            return f"values right, but {method} goes backward by autograd: write it with products of matrices"
    for method in BACKWARD:
        got = works[method].flops
        if got > target:
            text = f"values right, but {method} does {got} operations, {times(got / target)} the target of {target}"
            if method == "backward_input":
                return f"{text}: is the weight's gradient computed here already?"
            return text + ": the bias needs no product" * (got - target == 2 * gradient.numel())
        if got < target:
            return (
                f"values right, but {method} does {got} operations in torch's products of matrices, target {target}: "
                "is the product done in another method, or not by torch's @?"
            )
    return None


def _wrong_memory(report: TwoPartsReport, given: Given) -> str | None:
    x, gradient = (sum(tensor.nbytes for tensor in tensors) for tensors in zip(*given.parts, strict=True))
    target, count = x + gradient, len(given.parts)
    each = f" for {count} micro-batches" if count > 1 else ""
    text = f"between the parts {report.between} bytes are kept{each}, target {target}: x and the gradient"
    if report.between > target:
        likely = {gradient: "the output", x: "a copy of x", count * given.weight.nbytes: "a copy of the weight"}
        more = likely.get(report.between - target)
        return f"{text}; is {more} kept too?" if more else text
    if report.between < target:
        return f"{text}; what does backward_weight compute from?"
    if report.after:
        return (
            f"after backward_weight {report.after} bytes are still kept, in self or elsewhere: "
            "let go of what is done with"
        )
    return None


TWO_PARTS = ProbeExercise(
    key="04.8",
    title="a backward in two parts",
    inputs=draw,
    probe=attempt,
    verdict=verdict,
    levels={
        "values": Level(
            points=2,
            cases=(Layer(), Layer(shapes=((7,),), n_in=3, n_out=8)),
            praise="three gradients, as autograd has them",
        ),
        "edges": Level(
            points=2,
            again=True,
            cases=(Layer(shapes=((2, 3),)), Layer(shapes=((4,), (4,), (4,))), Layer(shapes=((1,),), n_in=1, n_out=1)),
            praise="for (B, S, H) too, and with several micro-batches waiting",
        ),
        "costs": Level(
            points=2,
            cases=(
                Layer(shapes=((8,),), looks_at_cost=True),
                Layer(shapes=((2, 3), (2, 3)), n_in=4, n_out=16, looks_at_cost=True),
            ),
            praise="each product once, in its own part; x and the gradient stay between them, and nothing after",
        ),
    },
    hints=(
        "y = x weight^T + bias. Call the gradient of y g. Then that of x is g weight, that of weight is g^T x, and "
        "that of bias is the sum of g over all rows. Which of the three does the stage before wait for?",
        "Keep x and weight in forward and gradient in backward_input, all in self, because each micro-batch has an "
        "object of its own. The weight is there anyway and does not count.",
        "x may have more than two dims. gradient.flatten(0, -2) makes rows of (B, S, out), and x.flatten(0, -2) "
        "does it for x. Of these rows gradient.T @ x is the weight's gradient, and gradient.sum(0) the bias's.",
        "After the second part nobody needs the two tensors any more. So let go of them before you return: self.x = "
        "self.gradient = None.",
    ),
)
