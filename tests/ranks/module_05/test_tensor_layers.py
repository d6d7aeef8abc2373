"""The operators and layers of tensor parallelism alone: values, gradients, what is shared and what may go wrong."""

from __future__ import annotations

from functools import partial
from itertools import product
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from course_lib.comm import ledger
from course_lib.parallel.table.layout import Layout
from course_lib.parallel.tensors import cutting
from course_lib.parallel.tensors.conjugate import Operators
from course_lib.parallel.tensors.cutting import TensorParallel
from course_lib.parallel.tensors.region import Region
from course_lib.parallel.tensors.vocabulary import vocab_parallel_cross_entropy
from course_lib.ranks import RankError, run_ranks

RANKS = 3
SHAPE = 2, 7, 4  # seven positions: three ranks have 3, 2 and 2


def numbers(rank, *shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(rank), dtype=torch.float64)


def there_and_back(operator, x, gradient):
    """What an operator gives, and what its backward makes of a gradient."""
    x = x.clone().requires_grad_()
    y = operator(x)
    y.backward(gradient)
    return y.detach(), x.grad


def table():
    """Each operator forward and backward on this rank, and what both should be."""
    rank, ops = dist.get_rank(), Operators(group=dist.group.WORLD)
    everyone = [numbers(each, *SHAPE) for each in range(RANKS)]
    mine, total = everyone[rank], sum(everyone)

    def piece(x):
        return x.tensor_split(RANKS, 1)[rank]

    whole = torch.cat([x.tensor_split(RANKS, 1)[each] for each, x in enumerate(everyone)], 1)
    cases = {  # operator, input, gradient; output, input's gradient
        "copy": (ops.copy_to_region, mine, mine, mine, total),
        "reduce": (ops.reduce_from_region, mine, mine, total, mine),
        "in place": (lambda x: ops.reduce_from_region_(x * 1), mine, mine, total, mine),
        "sum": (ops.sum_in_region, mine, mine, total, total),
        "scatter": (lambda x: ops.scatter_to_region(x, 1), mine, piece(mine), piece(mine), whole),
        "gather": (lambda x: ops.gather_from_region(x, 1, length=7), piece(mine), mine, whole, piece(mine)),
        "gather sequence": (lambda x: ops.gather_sequence(x, length=7), piece(mine), mine, whole, piece(total)),
        "scatter sequence": (ops.reduce_scatter_sequence, mine, piece(mine), piece(total), whole),
    }
    wrong = []
    for name, (operator, x, gradient, output, back) in cases.items():
        found = there_and_back(operator, x, gradient)
        wrong += [name for got, want in zip(found, (output, back), strict=True) if not torch.allclose(got, want)]
    return len(cases), wrong


def test_each_operator_s_backward_is_its_conjugate_s_forward():
    assert run_ranks(table, RANKS) == [(8, [])] * RANKS


def losses():
    """The loss and its gradient of logits too large for exp, and how far they are from one device's."""
    rank, ops = dist.get_rank(), Operators(group=dist.group.WORLD)
    logits = 1e4 * numbers(0, 4, 5, 10)
    targets = torch.randint(10, (4, 5), generator=torch.Generator().manual_seed(1))
    targets[0, 0] = -100
    words = range(*[(0, 4), (4, 7), (7, 10)][rank])
    ledger.clear()
    mine, loss = there_and_back(
        lambda x: vocab_parallel_cross_entropy(x[..., words.start : words.stop], targets, ops, words),
        logits,
        numbers(2, 4, 5),
    )[::-1]
    calls = {(event.operation, event.call) for event in ledger.current() if event.kind == "send"}
    whole = logits.clone().requires_grad_()
    want = F.cross_entropy(whole.flatten(0, 1), targets.flatten(), reduction="none", ignore_index=-100)
    want.backward(numbers(2, 4, 5).flatten())
    return (
        torch.allclose(loss.flatten(), want),
        torch.allclose(mine[..., words.start : words.stop], whole.grad[..., words.start : words.stop]),
        sorted(operation for operation, _ in calls),
    )


def test_the_loss_of_cut_logits_is_one_device_s_and_takes_three_all_reduces():
    assert run_ranks(losses, RANKS) == [(True, True, ["all_reduce"] * 3)] * RANKS


class Block(nn.Module):
    """Two maps of one input, called in any order, and one back."""

    def __init__(self, order=("a", "b"), bias=True):
        super().__init__()
        self.order = order
        self.a, self.b = nn.Linear(4, 6, bias=bias), nn.Linear(4, 9, bias=bias)
        self.c, self.d = nn.Linear(6, 4), nn.Linear(9, 4, bias=False)

    def forward(self, x):
        inner = {name: getattr(self, name)(x) for name in self.order}
        return self.c(inner["a"].tanh()) + self.d(inner["b"].sigmoid())


class Unlike(Block):
    """Each map has an input of its own, and one is called twice."""

    def forward(self, x):
        return self.c(self.a(x).tanh() + self.a(2 * x)) + self.d(self.b(3 * x))


STYLES = {"a": "column", "b": "column", "c": "row", "d": "row"}


def gradients_of(model, x):
    y = model(x)
    y.square().sum().backward()
    return y.detach(), {name: p.grad for name, p in model.named_parameters()}


def shared_input(make, meddle):
    """How a block with shared columns differs from one device, and which of its calls were all-reduces in backward."""
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    model, x = make(), numbers(5, 2, 3, 4)
    model.b.weight.requires_grad_(meddle != "frozen")
    want, whole = gradients_of(model, x.clone().requires_grad_())
    model.zero_grad()
    layout, at = Layout(model, {"tp": RANKS}), {"tp": dist.get_rank()}
    TensorParallel(model, layout, at, Region(operators=Operators(group=dist.group.WORLD))).cut(STYLES)
    if meddle == "moved":
        model.a.weight.data = model.a.weight.data.clone()
    ledger.clear()
    got, mine = gradients_of(model, x.clone().requires_grad_())
    torch.set_default_dtype(torch.float32)
    assert torch.allclose(got, want)
    for name, gradient in whole.items():
        assert (mine[name] is None) == (gradient is None), name
        assert gradient is None or torch.allclose(mine[name], layout.part(name, gradient, at)), name
    one = model.a.weight.untyped_storage().data_ptr() == model.b.weight.untyped_storage().data_ptr()
    return len({event.call for event in ledger.current() if event.call}), one


def test_maps_of_one_input_share_a_product_and_an_all_reduce():
    """Two calls in forward, of the rows; one in backward for both columns."""
    cases = [(Block, ""), (lambda: Block(("b", "a"), bias=False), ""), (Block, "frozen"), (Block, "moved")]
    for make, meddle in cases:
        assert run_ranks(shared_input, RANKS, make, meddle) == [(3, meddle != "moved")] * RANKS


def test_maps_that_have_inputs_of_their_own_are_right_too():
    calls, _ = run_ranks(shared_input, RANKS, Unlike, "")[0]
    assert calls > 3


def cut(model, **form):
    """Its part on this rank."""
    region = Region(operators=Operators(group=dist.group.WORLD), **form)
    TensorParallel(model, Layout(model, {"tp": RANKS}), {"tp": dist.get_rank()}, region).cut(STYLES)
    return model


def block(**form):
    torch.manual_seed(0)
    return cut(Block().double(), **form)


CASES = [*product((None, "keep", "regather"), (True, False), ("", "a", "b", "input"))]


def by_plain_page_and_entrance():
    """Where the columns of the plain page and those that share an entrance differ; and which calls they make."""
    wrong, calls = [], {}
    for form, bias, frozen in CASES:
        found = []
        for entrance in (lambda around, maps: None, cutting.Entrance):
            torch.manual_seed(0)
            model = Block(bias=bias).double()
            if frozen in ("a", "b"):
                model.get_submodule(frozen).requires_grad_(False)
            with patch.object(cutting, "Entrance", entrance):
                cut(model, sequence_parallel=form, length=7)
            x = numbers(5, *SHAPE)
            if form:
                x = x.tensor_split(RANKS, 1)[dist.get_rank()].clone()
            x.requires_grad_(frozen != "input")
            ledger.clear()
            y, gradients = gradients_of(model, x)
            found.append({"y": y, "x": x.grad, **gradients})
            calls.setdefault((form, frozen), []).append(len({e.call for e in ledger.current() if e.call}))
        plain, shared = found
        for name, want in plain.items():
            got = shared[name]
            if (got is None) != (want is None) or (got is not None and not torch.allclose(got, want)):
                wrong.append((form, bias, frozen, name))
    return wrong, calls


def test_an_entrance_changes_no_number_and_saves_messages():
    wrong, calls = run_ranks(by_plain_page_and_entrance, RANKS)[0]
    assert wrong == [] and len(CASES) == 24
    assert calls[None, ""] == [4, 3] * 2  # with and without a bias: one all-reduce in backward instead of two
    assert calls["keep", ""] == [8, 6] * 2  # and one gather in forward
    assert calls["regather", ""] == [8, 7] * 2  # which there is once more in backward


def called_again():
    """What two maps give, called by themselves or within a forward, against their own weights."""
    found = {}
    model, x = block(), numbers(5, 3, 4)

    def is_right(one, y, x):
        return torch.allclose(y, F.linear(x, one.weight, one.bias))

    model.a(x)
    with torch.no_grad():
        model.b.weight.add_(1)
    found["new weights"] = is_right(model.b, model.b(x), x)

    within = {}

    def forward(x):
        model.a(x)
        x.add_(1)
        within["changed input"] = is_right(model.b, model.b(x), x)
        other = x + 1
        with torch.no_grad():
            model.a(other)
        y = model.b(other)
        within["gradient wanted"] = y.requires_grad and is_right(model.b, y, other)
        return x

    model.forward = forward
    model(x.clone())
    with torch.inference_mode():
        model(x.clone())
        found["changed in inference mode"] = within.pop("changed input")
    model(x.clone())
    found |= within
    one = numbers(6, 4)
    found["one dimension"] = model.a(one).shape == (2,) and is_right(model.a, model.a(one), one)
    return found


def test_no_map_takes_what_was_computed_for_another_call():
    names = ("new weights", "changed in inference mode", "gradient wanted", "changed input", "one dimension")
    for found in run_ranks(called_again, RANKS):
        assert found == dict.fromkeys(names, True)


def changed_before_backward():
    model = block()
    y = model(numbers(5, 3, 4))
    with torch.no_grad():
        model.a.weight.add_(1)
    y.sum().backward()


def without_positions(layer):
    block(sequence_parallel="keep", length=7).get_submodule(layer)(numbers(5, 4 if layer == "a" else 2))


@pytest.mark.parametrize(
    ("work", "words"),
    [
        (changed_before_backward, "modified by an inplace operation"),
        *((partial(without_positions, layer), r"tensor: a tensor of shape \(\d,\); .* the S of") for layer in "ac"),
    ],
)
def test_what_cannot_be_computed_is_refused(work, words):
    with pytest.raises(RankError, match=words):
        run_ranks(work, RANKS)
