"""04.8: a linear layer whose backward comes in two parts, and what it keeps between them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from course_lib.checks import ratios
from course_lib.checks.module_03.compare import exactly, ratio_of, same
from course_lib.checks.probe import ProbeExercise
from course_lib.checks.spec import Level
from course_lib.comm.ledger import Ledger

NAMES = ("the output", "the input's gradient", "the weight's gradient", "the bias's gradient")
OUTPUT, INPUT, WEIGHT, BIAS = range(4)


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


class Report(NamedTuple):
    """One micro-batch: what came out, the multiplications of both parts of backward, bytes kept between and after."""

    found: list[Tensor | str]
    flops: tuple[int, int]
    kept: tuple[int, int]


def draw(case: Layer, seed: int) -> Given:
    """Random numbers in fp64."""
    generator = torch.Generator().manual_seed(seed * 1009 + case.n_in + sum(map(len, case.shapes)))

    def numbers(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    parts = [(numbers(*shape, case.n_in), numbers(*shape, case.n_out)) for shape in case.shapes]
    return Given(numbers(case.n_out, case.n_in), numbers(case.n_out), parts)


def attempt(answer: Callable[..., Any], given: Given) -> list[Report]:
    """Runs on a rank: all forwards, then all first parts, then all second parts, as in the tail of ZB-H1."""
    weight, bias = torch.nn.Parameter(given.weight), torch.nn.Parameter(given.bias)
    layers = [answer() for _ in given.parts]
    outputs = [layer.forward(x, weight, bias) for layer, (x, _) in zip(layers, given.parts, strict=True)]
    firsts, between = [], []
    for layer, (_, gradient) in zip(layers, given.parts, strict=True):
        with FlopCounterMode(display=False) as counter:
            firsts.append(layer.backward_input(gradient))
        between.append((counter.get_total_flops(), kept_bytes(layer, (weight, bias))))
    reports = []
    for layer, output, first, (flops, kept) in zip(layers, outputs, firsts, between, strict=True):
        with FlopCounterMode(display=False) as counter:
            second = layer.backward_weight()
        both = list(second) if isinstance(second, tuple | list) and len(second) == 2 else [f"{second!r:.40}"] * 2
        found = [one.detach() if isinstance(one, Tensor) else str(one) for one in (output, first, *both)]
        after = kept_bytes(layer, (weight, bias))
        reports.append(Report(found, (flops, counter.get_total_flops()), (kept, after)))
    return reports


def kept_bytes(layer: Any, parameters: Iterable[Tensor]) -> int:
    """Bytes behind the tensors that an object holds, in containers too; those of its parameters do not count."""
    storages = {x.untyped_storage().data_ptr(): x.untyped_storage().nbytes() for x in _tensors(vars(layer))}
    for parameter in parameters:
        storages.pop(parameter.untyped_storage().data_ptr(), None)
    return sum(storages.values())


def _tensors(value: Any) -> Iterable[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict | list | tuple):
        for one in value.values() if isinstance(value, dict) else value:
            yield from _tensors(one)


def verdict(case: Layer, given: Given, reports: tuple[Any, ...], book: Ledger) -> str | None:
    """Values, then multiplications and memory."""
    for number, (report, (x, gradient)) in enumerate(zip(reports[0], given.parts, strict=True)):
        which = f", micro-batch {number}" if len(given.parts) > 1 else ""
        reason = _wrong_values(report.found, given, number)
        if reason is None and case.looks_at_cost:
            reason = _wrong_flops(report.flops, x, gradient) or _wrong_memory(report.kept, given, x, gradient)
        if reason:
            return f"{case}{which}: {reason}"
    return None


def reference(given: Given, number: int) -> list[Tensor]:
    """Output and gradients by autograd."""
    (x, gradient), weight, bias = given.parts[number], given.weight, given.bias
    leaves = [one.clone().requires_grad_() for one in (x, weight, bias)]
    y = torch.nn.functional.linear(*leaves)
    return [y.detach(), *torch.autograd.grad(y, leaves, gradient)]


def _wrong_values(found: list[Tensor | str], given: Given, number: int) -> str | None:
    want = reference(given, number)
    for place, (name, got, right) in enumerate(zip(NAMES, found, want, strict=True)):
        if isinstance(got, str):
            of = "backward_weight returns two tensors, of the weight and of the bias" if place >= WEIGHT else "a tensor"
            return f"{name} is {got}, expected {of}"
        if got.shape != right.shape:
            turned = ": is it turned round? weight is (out, in)" * (got.shape == right.shape[::-1])
            return f"{name} has shape {tuple(got.shape)}, expected {tuple(right.shape)}{turned}"
        if not same(got, right):
            return f"{name} {_signature(place, got, right, given, number)}"
    return None


def _signature(place: int, got: Tensor, right: Tensor, given: Given, number: int) -> str:
    for other in range(len(given.parts)):
        if other != number and same(got, reference(given, other)[place]):
            return f"is micro-batch {other}'s: does each object keep its own tensors, in self?"
    if place == OUTPUT and same(got, right - given.bias):
        return "lacks the bias"
    ratio = ratio_of(got, right)
    if ratio is None:
        return "is no multiple of the reference"
    rows = len(given.parts[number][1].flatten(0, -2))
    meaning = {0.0: ": nothing was added up", 1 / rows: ": a mean over rows, where a sum belongs"}
    return f"is {exactly(ratio)} the reference{meaning.get(round(ratio, 12), '')}"


def _wrong_flops(flops: tuple[int, int], x: Tensor, gradient: Tensor) -> str | None:
    target = 2 * x.numel() * gradient.shape[-1]
    for name, got in zip(("backward_input", "backward_weight"), flops, strict=True):
        if got > target:
            text = (
                f"values right, but {name} does {got} operations, {ratios.times(got / target)} the target of {target}"
            )
            both = ": is the weight's gradient computed here already?" if name == "backward_input" else ""
            return f"{text}{both}"
    return None


def _wrong_memory(kept: tuple[int, int], given: Given, x: Tensor, gradient: Tensor) -> str | None:
    between, after = kept
    target = x.nbytes + gradient.nbytes
    if between > target:
        text = f"values right, but between the parts it keeps {between} bytes, target {target}: x and the gradient"
        output = " too" if between == target + gradient.nbytes else ""
        return f"{text}; does it keep the output{output}?" if output else text
    if after:
        return f"values right, but after backward_weight it still keeps {after} bytes: let go of what is done with"
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
            cases=(Layer(shapes=((2, 3),)), Layer(shapes=((4,), (4,), (2,))), Layer(shapes=((1,),), n_in=1, n_out=1)),
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
        "y = x W^T + b. With g the gradient of y: x's is g W, W's is g^T x, b's is the sum of g over all rows. "
        "Which of them does the stage before wait for?",
        "Keep x and weight in forward, and gradient in backward_input: in self, since each micro-batch has its object. "
        "A weight is there anyway and does not count.",
        "gradient.flatten(0, -2) makes rows of (B, S, out); the same for x.",
        "At the end of backward_weight: self.x = self.gradient = None.",
    ),
)
