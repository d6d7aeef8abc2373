"""04.8: right answers however written, and what the meter sees."""

from __future__ import annotations

import threading
import time

import pytest
import torch
import torch.nn.functional as F

from course_lib.checks.kit.meter import Meter
from course_lib.checks.module_04.two_parts import TWO_PARTS, attempt, draw, verdict
from course_lib.comm.ledger import Ledger

CASES = [case for level in TWO_PARTS.levels.values() for case in level.cases]


class Plain:
    def forward(self, x, weight, bias):
        self.x, self.weight = x, weight
        return x @ weight.T + bias

    def backward_input(self, gradient):
        self.gradient = gradient
        return gradient @ self.weight

    def backward_weight(self):
        x, gradient = self.x.flatten(0, -2), self.gradient.flatten(0, -2)
        del self.x, self.gradient, self.weight
        return gradient.T @ x, gradient.sum(0)


class Einsum(Plain):
    def forward(self, x, weight, bias):
        super().forward(x, weight, bias)
        return torch.einsum("...i,oi->...o", x, weight) + bias

    def backward_input(self, gradient):
        self.gradient = gradient
        return torch.einsum("...o,oi->...i", gradient, self.weight)

    def backward_weight(self):
        x, gradient = self.x, self.gradient
        self.x = self.gradient = None
        return torch.einsum("...o,...i->oi", gradient, x), gradient.flatten(0, -2).sum(0)


class OnCopies(Plain):
    def forward(self, x, weight, bias):
        y = super().forward(x.clone(), weight.detach(), bias.detach())
        y += 0
        return y

    def backward_weight(self):
        return list(super().backward_weight())


class OneProductForEachSequence(Plain):
    def backward_weight(self):
        rows = self.gradient.reshape(-1, *self.gradient.shape[-2:]), self.x.reshape(-1, *self.x.shape[-2:])
        self.x = self.gradient = None
        return (rows[0].mT @ rows[1]).sum(0), rows[0].sum((0, 1))


class Closure:
    __slots__ = ("input_part", "weight_part")

    def forward(self, x, weight, bias):
        def first(gradient):
            self.weight_part = lambda: (gradient.flatten(0, -2).T @ x.flatten(0, -2), gradient.flatten(0, -2).sum(0))
            return F.linear(gradient, weight.T)

        self.input_part = first
        return F.linear(x, weight, bias)

    def backward_input(self, gradient):
        return self.input_part(gradient)

    def backward_weight(self):
        found = self.weight_part()
        self.input_part = self.weight_part = None
        return found


@pytest.mark.parametrize("answer", [Plain, Einsum, OnCopies, OneProductForEachSequence, Closure])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_however_it_is_written_a_right_answer_passes(answer, case):
    given = draw(case, 3)
    assert verdict(case, given, (attempt(answer, given),), Ledger((), 1)) is None


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_mean_over_any_number_of_rows_is_named(case):
    class Mean(Plain):
        def backward_weight(self):
            rows = self.x.flatten(0, -2).shape[0]
            return tuple(one / rows for one in super().backward_weight())

    given = draw(case, 3)
    found = verdict(case, given, (attempt(Mean, given),), Ledger((), 1))
    assert (found or "").endswith("a mean over rows, where a sum belongs") == (case.shapes != ((1,),))


def test_the_meter_sees_what_is_kept_where_no_name_leads():
    meter, x = Meter(), torch.ones(3, requires_grad=True)
    y, work = meter.measure(lambda: (x * 2).exp())  # autograd's graph keeps the result, and y has the same memory
    assert (work.flops, work.autograd, meter.live_bytes(besides=())) == (0, False, 12)
    total = y.sum()
    del y
    assert meter.live_bytes(besides=()) == 12
    del total
    assert meter.live_bytes(besides=()) == 0


def test_what_a_thread_lets_go_of_a_moment_later_is_not_kept():
    """As gloo's threads do with the tensors of a call that has returned."""
    meter, taken, looks = Meter(), [], threading.Event()
    with meter:
        taken.append(torch.ones(3))

    def lets_go():
        looks.wait()
        time.sleep(0.05)
        taken.clear()

    thread = threading.Thread(target=lets_go)
    thread.start()
    assert meter.live_bytes(()) == 12
    looks.set()
    assert meter.live_bytes((), at_most=0) == 0
    thread.join()
    with meter:
        kept = torch.ones(2)
    assert meter.live_bytes((), at_most=0) == kept.nbytes  # in spite of all patience


def test_the_meter_counts_products_and_sees_autograd():
    meter, weight = Meter(), torch.ones(5, 6, requires_grad=True)
    y, forward = meter.measure(F.linear, torch.ones(8, 6), weight)
    _, backward = meter.measure(torch.autograd.grad, y, weight, torch.ones(8, 5))
    assert (forward.flops, forward.autograd) == (480, False)
    assert (backward.flops, backward.autograd) == (480, True)
    meter.note([weight])
    del y
    assert meter.live_bytes(besides=()) - meter.live_bytes(besides=[weight]) == weight.nbytes
