"""11.3: a part of a model that keeps its input alone and is recomputed in backward, with the same dice."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from course_lib.checks.kit.asked import asked_exercise
from course_lib.checks.kit.probe import Slips
from course_lib.checks.kit.said import plural, wrong_kind
from course_lib.checks.kit.spec import Level
from course_lib.gauges.allocated import allocated_bytes
from course_lib.verify.equality import close

_WIDTH = 6
_SLACK = 2**15  # bytes of random states, and of what autograd notes
Run = Callable[[Tensor], Tensor]


@dataclass(frozen=True, kw_only=True)
class Chain:
    """So many parts in a row, with this dropout; what is looked at."""

    parts: int = 2
    dropout: float = 0.3
    rows: int = 5
    leaf: bool = True  # whether the input has a gradient
    memory: bool = False
    world_size: int = 1

    def __str__(self) -> str:
        leaf = "" if self.leaf else ", an input without gradient"
        return f"{plural(self.parts, 'part')}, dropout {self.dropout:g}{leaf}"


class _Scene(NamedTuple):
    """Parts of a model, their input and the gradient of what comes out; the seed of dropout."""

    weights: tuple[Tensor, ...]
    dropout: float
    x: Tensor
    gradient: Tensor
    leaf: bool
    memory: bool
    seed: int

    def __str__(self) -> str:
        return ""

    def parts(self) -> list[nn.Sequential]:
        """With weights of their own."""
        found = []
        for weight in self.weights:
            one = nn.Linear(_WIDTH, _WIDTH, bias=False, dtype=weight.dtype)
            one.weight = nn.Parameter(weight.clone())
            found.append(nn.Sequential(one, nn.GELU(), nn.Dropout(self.dropout), nn.Tanh()))
        return found


class _Gone(NamedTuple):
    """Forward and backward: what came out, gradients, the next random number, runs of each part, bytes that stay."""

    output: Tensor
    gradients: tuple[Tensor | None, ...]  # of the input, then of the parts' weights
    drawn: Tensor
    runs: list[int]
    kept: int
    ready: bool  # whether PyTorch's own has called a part


def _records(case: Chain, seed: int) -> Sequence[_Scene]:
    source = torch.Generator().manual_seed(1009 * seed + 10 * case.parts + case.leaf)
    weights = torch.randn(case.parts, _WIDTH, _WIDTH, generator=source, dtype=torch.float64)
    x, gradient = torch.randn(2, case.rows, _WIDTH, generator=source, dtype=torch.float64)
    return [_Scene(tuple(weights), case.dropout, x, gradient, case.leaf, case.memory, 5 + seed)]


def _use(answer: Callable[..., Any], scene: _Scene) -> _Gone | str:
    """Runs on a rank; a text says what came instead."""
    parts, runs, ready = scene.parts(), [0] * len(scene.weights), []

    def counted(number: int, x: Tensor) -> Tensor:
        runs[number] += 1
        ready.append(_under_pytorch_s_own())
        result: Tensor = parts[number](x)
        return result

    def forward(x: Tensor) -> Any:
        for number in range(len(parts)):
            x = answer(partial(counted, number), x)
        return x

    x = scene.x.clone().requires_grad_(scene.leaf)
    torch.manual_seed(scene.seed)
    output = forward(x)
    if not isinstance(output, Tensor):
        return wrong_kind(type(output).__name__, "a tensor")
    if not output.requires_grad:
        return "what comes back has no history, so no backward will ever come: is the weight's gradient asked for?"
    try:
        output.backward(scene.gradient)
    except RuntimeError as error:
        if "modified by an inplace operation" not in str(error):
            raise
        return "backward finds something overwritten that forward has kept"
    drawn, found = torch.rand(3), tuple(part.get_parameter("0.weight").grad for part in parts)
    made = list(runs)
    kept = allocated_bytes(lambda: forward(x)) if scene.memory else 0
    return _Gone(output.detach(), (x.grad, *found), drawn, made, kept, any(ready))


def _under_pytorch_s_own() -> bool:
    """Whether torch.utils.checkpoint is among those that wait for this call."""
    frame: FrameType | None = sys._getframe()
    while frame is not None and frame.f_globals.get("__name__") != "torch.utils.checkpoint":
        frame = frame.f_back
    return frame is not None


def _judge(scene: _Scene, gone: _Gone | str) -> str | None:
    if isinstance(gone, str):
        return gone
    right = _use(lambda run, x: run(x), scene._replace(memory=False))
    assert isinstance(right, _Gone)
    if not close(gone.output, right.output):
        return "the output is not that of the parts: are they called once each in forward, in this order?"
    names = ("the input", *(f"the weight of part {number}" for number in range(len(scene.weights))))
    for name, got, want in zip(names, gone.gradients, right.gradients, strict=True):
        if (got is None) != (want is None):
            return f"{name} has {'no' if got is None else 'a'} gradient"
        if not close(got, want):
            return f"outputs are right, but not the gradient of {name}{_MASKS if scene.dropout else ''}"
    if not gone.drawn.equal(right.drawn):
        return (
            "gradients are right, but whoever draws a random number after backward gets another one than without "
            "recomputing: put the state back to where it was"
        )
    if gone.ready:
        return "right, but by torch.utils.checkpoint, PyTorch's own: this exercise asks you to write it"
    most = len(scene.weights) * gone.output.nbytes + _SLACK  # a part's output is the next one's input
    if gone.kept > most:
        return (
            f"right, but {gone.kept:,} bytes stay after forward, and {most:,} are enough for what the parts get and "
            "give and for random states: what a part computes inside is to be gone until backward"
        )
    if scene.memory and gone.runs != [2] * len(gone.runs):
        return f"right, but the parts run {gone.runs} times, and twice each is right: in forward and in backward"
    return None


_MASKS = ". Does the second run drop the same numbers as the first?"


class _Again(torch.autograd.Function):
    """Right, or with a mistake."""

    @staticmethod
    def forward(ctx: Any, run: Run, mistake: str, needs: Tensor, x: Tensor) -> Tensor:
        ctx.run, ctx.mistake, ctx.state = run, mistake, torch.get_rng_state()
        ctx.save_for_backward(x)
        return run(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, None, None, Tensor | None]:
        (x,), mistake = ctx.saved_tensors, ctx.mistake
        x = x.detach().requires_grad_(ctx.needs_input_grad[3])
        now = torch.get_rng_state()
        if mistake != "fresh":
            torch.set_rng_state(ctx.state if mistake != "seeded" else torch.Generator().manual_seed(0).get_state())
        with torch.enable_grad():
            y = ctx.run(x)
        if mistake not in ("left", "fresh"):
            torch.set_rng_state(now)
        if mistake == "without weights" and x.requires_grad:
            return None, None, None, torch.autograd.grad(y, x, gradient)[0]
        if mistake != "without weights":
            torch.autograd.backward(y, torch.ones_like(gradient) if mistake == "ones" else gradient)
        return None, None, None, None if mistake == "without input" else x.grad


def _again(run: Run, x: Tensor, *, mistake: str = "") -> Tensor:
    needs = torch.empty(0, requires_grad=mistake != "no needs")
    result: Tensor = _Again.apply(run, mistake, needs, x)
    return result


def _way(mistake: str) -> Callable[..., Any]:
    return partial(_again, mistake=mistake)


_SLIPS: Slips = {
    "the second run drops other numbers than the first. Note the random state in forward and put it back in backward": (
        _way("fresh")
    ),
    "the second run begins from a fixed seed, and the first did not": _way("seeded"),
    "gradients are right, but the random state stays where the second run has left it. Put it back afterwards": (
        _way("left")
    ),
    "the weights inside get no gradient: go backward with torch.autograd.backward, which reaches them": (
        _way("without weights")
    ),
    "the gradient of the input does not come back": _way("without input"),
    "backward begins with ones, and not with the gradient that came": _way("ones"),
}

_RECOMPUTED = asked_exercise(
    key="11.3",
    title="recompute, with the same dice",
    records=_records,
    use=_use,
    judge=_judge,
    slips=_SLIPS,
    large=lambda case: case.memory,
    levels={
        "gradients": Level(
            points=2,
            cases=(Chain(dropout=0.0), Chain(), Chain(parts=3, dropout=0.5)),
            praise="the gradients of a run without recomputing, and the random numbers after it, too",
        ),
        "leaf": Level(
            points=1,
            again=True,
            cases=(Chain(leaf=False),),
            praise="also where the input needs no gradient, and only the weights do",
        ),
        "kept": Level(
            points=2,
            cases=(Chain(parts=4, rows=2000, memory=True),),
            praise="and between forward and backward each part keeps its input and nothing else",
        ),
    },
    hints=(
        "forward runs without history, since a Function's forward always does. So nothing inside `run` is kept. Note "
        "in ctx what backward will need: `run`, the random state, and x by ctx.save_for_backward.",
        "In backward: x.detach() with requires_grad_(ctx.needs_input_grad[2]), and under torch.enable_grad() call run "
        "again. That has a history, which begins at this x.",
        "Before the second run torch.set_rng_state(the state of forward), and after it the state that there was "
        "before. Else whatever is drawn next is not what it would have been.",
        "torch.autograd.backward(y, gradient) adds to the gradients of the weights inside `run`, and to x.grad. "
        "Return one thing for each argument of forward: None, None, x.grad.",
    ),
)
