"""What the ladder cannot stand on, each said in one line before a rung is climbed or a wrong cause is named."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NoReturn

import torch
from torch import Tensor

from course_lib.errors import four_parts
from course_lib.parallel.table.agreement import listing
from course_lib.verify.alike import SGD, Plan, born_with, plan_batch
from course_lib.verify.equality import deviation, name_of, ratio_of
from course_lib.verify.look import copied
from course_lib.verify.pairs import reading_rounds, trainable
from course_lib.verify.ratios import times
from course_lib.verify.trace import SgdTrace, Trace
from course_lib.verify.trainable import Make

_SIGNS = 1e-3  # a step this near to the learning rate itself is Adam's first
_ROUNDINGS = 4  # as many may add up where two steps are read


def check_reference(make: Make, plan: Plan, trace: SgdTrace, within: float) -> None:
    """Refuse batches that change, and a reference that does not do the same twice or whose SGD is none.

    Raises: ValueError that says which tensor moved.
    """
    again = zip(plan_batch(plan, 0), plan_batch(plan, 0), strict=True)
    if not trace.changed_batch and not all(torch.equal(*both) for both in again):
        rule = "both sides train on the same batches"
        _refuse("batches(0) gives other numbers when it is asked again", rule, "draw them from a generator of the step")
    _check_batch("the reference", trace)
    with born_with(0, plan.dtype):
        trainer = make(SGD)
        start = copied(trainer.parameters())
        _check_start("the reference", start, trace, within)
        if hasattr(trainer, "output"):
            trainer.output(plan_batch(plan, 0)[0])  # the first one was asked too, and may have drawn numbers for it
        trainer.step(plan_batch(plan, 0))
        moved = _apart(copied(trainer.parameters()), trace.after_first, within)
    if moved:
        rule = "one device trained twice, with the same seed on the same batch, does the same"
        values = f"the reference is not deterministic: its first step leaves {moved}"
        _refuse(values, rule, "draw random numbers from torch's generator, or leave them out")
    _check_sgd("the reference", trace, within)


def _check_start(side: str, start: Mapping[str, Tensor], trace: SgdTrace, within: float) -> None:
    """Refuse a side whose next trainer begins otherwise than its first one, which left `trace`."""
    moved = _apart(start, trace.start, within)
    if moved and not _apart(start, trace.end, within):
        values = f"the second trainer that {side} makes begins with the weights with which the first one ended"
        _refuse(values, "trainers share no state", "build model and optimizer inside the function")
    if moved:
        rule = "with the same seed it makes the same trainer"
        values = f"{side} is not deterministic: made twice, it begins with {moved}"
        _refuse(values, rule, "draw weights from torch's generator")


def check_ranks(alone: SgdTrace, ranks: Sequence[Trace], within: float) -> None:
    """Refuse ranks that change their batch, begin otherwise the second time, hold another precision, or have no SGD.

    Raises: ValueError.
    """
    first = ranks[0][0]
    for rank, (trace, adamw) in enumerate(ranks):
        side = f"the parallel side, on rank {rank},"
        _check_batch(side, trace)
        _check_start(side, trace.second_start or (adamw.start if adamw else {}), trace, within)
    for name, x in first.start.items():
        want = alone.start.get(name, x).dtype
        if x.dtype != want:
            values = f"{name} is {name_of(want)} on one device and {name_of(x.dtype)} on the ranks"
            _refuse(values, "both sides are built in the precision of the run", "do not convert on one side alone")
    if first.is_read:
        _check_sgd("the parallel side", first, within)


def _check_sgd(side: str, trace: SgdTrace, within: float) -> None:
    """Refuse a first step that is not one of plain SGD; where gradients are read from it, of SGD with any batch."""
    rule = "under optimizer='sgd' a step is w - learning_rate x gradient, and nothing else"
    way_out = "let make(config) use config.optimizer and config.learning_rate, without warm-up or momentum"
    for name in trainable(trace):
        gradient = trace.gradients.get(name)
        if gradient is None or not gradient.is_floating_point() or not gradient.numel():
            continue
        rounds = _ROUNDINGS * reading_rounds(trace.start[name]) + within * gradient.abs().max().item()
        other = trace.halved.get(name, (trace.start[name] - trace.after_first[name]) / SGD.learning_rate)
        if (other - gradient).abs().max().item() <= rounds:
            continue
        ratio = ratio_of(other, gradient)
        off = "something else" if ratio is None else f"{times(ratio / (2 if trace.is_read else 1))} as much"
        asked = "with half the learning rate" if trace.is_read else "where learning_rate x gradient is asked"
        _refuse(f"{side} has no SGD: {asked}, the first step moves {name} by {off}", rule, way_out)
    sizes = [x[x != 0].abs() for x in trace.gradients.values() if trace.is_read and x.any()]
    if sizes and bool(((torch.cat(sizes) - 1).abs() < _SIGNS).all()):
        _refuse(f"{side} has no SGD: its first step moves each weight by the learning rate, as Adam's", rule, way_out)


def _check_batch(side: str, trace: SgdTrace) -> None:
    if trace.changed_batch:
        values, rule = f"{side} changes the batch that it is given", "the next who is given it trains on other numbers"
        _refuse(values, rule, "work on a copy")


def _apart(got: Mapping[str, Tensor], want: Mapping[str, Tensor], within: float) -> str:
    """The parameters that are not equal, the first with how far it is off; empty if all are."""
    off = [name for name, x in got.items() if name not in want or not deviation(x, want[name]) <= within]
    far = f", {off[0]} off by {deviation(got[off[0]], want[off[0]]):.2g}" if off and off[0] in want else ""
    return f"another {listing(off)}{far}" if off else ""


def _refuse(values: str, rule: str, way_out: str) -> NoReturn:
    raise ValueError(four_parts("assert_parallel_equals", values, rule, way_out))
