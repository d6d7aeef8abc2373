"""Right answers to exercises of module 05, written in other ways than the solutions; what a verdict rests on."""

from __future__ import annotations

import sys

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F

from course_lib import comm
from course_lib.checks import check
from course_lib.checks.kit import runner
from course_lib.checks.kit.gradients import differing


def column_by_autograd(x, weight, bias, gradient):
    leaves = [each.clone().requires_grad_() for each in (x, weight, bias)]
    y = F.linear(*leaves)
    y.backward(gradient)
    x, weight, bias = leaves
    return [y, weight.grad, bias.grad, comm.all_reduce_(x.grad)]


def row_with_the_bias_on_one_rank(x, weight, bias, gradient):
    """Right: it is in the sum once."""
    term = F.linear(x, weight, bias if dist.get_rank() == 0 else None)
    return comm.all_reduce(term, algorithm="ring"), gradient.T @ x, gradient.sum(0), gradient @ weight


def feed_forward_by_hand(x, w1, b1, w2, b2, gradient):
    """GELU's derivative is x's part of a sum and a product."""
    rank, p = dist.get_rank(), dist.get_world_size()
    w1, b1, w2 = w1.tensor_split(p)[rank], b1.tensor_split(p)[rank], w2.tensor_split(p, 1)[rank]
    z = x @ w1.T + b1
    density, share = torch.exp(-z.square() / 2) / (2 * torch.pi) ** 0.5, torch.special.ndtr(z)
    y = comm.all_reduce((z * share) @ w2.T) + b2
    back = (gradient @ w2) * (share + z * density)
    return y, back.T @ x, back.sum(0), gradient.T @ (z * share), gradient.sum(0), comm.all_reduce(back @ w1)


def loss_without_a_mask(logits, targets, first):
    """One-hot rows instead of a look-up; the maximum stays in both."""
    words = torch.arange(first, first + logits.shape[-1])
    hot = (targets.unsqueeze(-1) == words).to(logits.dtype)
    largest = comm.all_reduce(logits.max(-1).values, op=dist.ReduceOp.MAX)
    powers = (logits - largest.unsqueeze(-1)).exp()
    total, found = comm.all_reduce(powers.sum(-1)), comm.all_reduce((logits * hot).sum(-1))
    return largest + total.log() - found, (powers / total.unsqueeze(-1) - hot) / targets.numel()


def heads_by_division(n_heads, n_kv_heads, gradient, group):
    """Asks each query head for its kv head; counts a copied head on the first of its ranks alone."""
    mine = n_heads // dist.get_world_size()
    queries = range(dist.get_rank() * mine, (dist.get_rank() + 1) * mine)
    keys = sorted({q // (n_heads // n_kv_heads) for q in queries})
    whole = comm.all_reduce(gradient, group=group)
    squares = whole.norm() ** 2 * (group.rank() == 0)
    return queries, keys, whole, comm.all_reduce(squares).item() ** 0.5


def spread_by_hand(x, gain, w1, w2, gradient, length):
    """The norm written out."""
    leaves = [each.clone().requires_grad_() for each in (x, gain, w1, w2)]
    mine, gain, w1, w2 = leaves
    normed = mine / (mine.square().mean(-1, keepdim=True) + 1e-5) ** 0.5 * gain
    whole = comm.all_gather(normed.detach(), length=length).requires_grad_()
    term = F.gelu(whole @ w1.T) @ w2.T
    term.backward(comm.all_gather(gradient, length=length))
    normed.backward(comm.reduce_scatter(whole.grad))
    return x + comm.reduce_scatter(term), comm.all_reduce(gain.grad), w1.grad, w2.grad, mine.grad + gradient


ANSWERS = {
    "05.2": column_by_autograd,
    "05.3": row_with_the_bias_on_one_rank,
    "05.4": feed_forward_by_hand,
    "05.5": loss_without_a_mask,
    "05.6": heads_by_division,
    "05.7": spread_by_hand,
}
SOLUTIONS = {"05.2": "column_parallel", "05.3": "row_parallel", "05.4": "feed_forward"}


@pytest.mark.parametrize(("exercise", "answer"), ANSWERS.items())
def test_a_right_answer_passes_however_it_is_written(exercise, answer):
    assert check(exercise, answer).passed


def position_after_position(x, gain, w1, w2, gradient, length):
    """A rank's own positions one by one, their roots taken twice; a root that belongs to no position."""
    mine, gain, w1, w2 = (each.clone().requires_grad_() for each in (x, gain, w1, w2))
    normed = torch.stack([F.rms_norm(row, gain.shape, gain, 1e-5) for row in mine])
    whole = comm.all_gather(normed, length=length).requires_grad_()
    term = F.gelu(whole @ w1.T) @ w2.T
    _, g1, g2 = g = torch.autograd.grad(term, (whole, w1, w2), comm.all_gather(gradient, length=length))
    again = mine * torch.rsqrt(mine.square().mean(-1, keepdim=True) + torch.tensor(1e-10).sqrt()) * gain
    gx, g_gain = torch.autograd.grad(again, (mine, gain), comm.reduce_scatter(g[0]))
    return x + comm.reduce_scatter(term), comm.all_reduce(g_gain), g1, g2, gx + gradient


def test_how_often_and_in_how_many_calls_a_rank_normalises_its_own_positions_does_not_matter():
    assert check("05.7", position_after_position).passed


def test_backward_from_a_given_gradient_imports_nothing_in_the_learners_time():
    """PyTorch imports sympy for it, which takes seconds where other processes compute as well."""

    def imports_nothing(*given):
        assert "sympy" in sys.modules
        return column_by_autograd(*given)

    runner.shutdown()
    assert check("05.2", imports_nothing, part="values").passed


def test_the_first_levels_of_heads_ask_for_nothing_of_the_later_ones():
    """Partial work earns partial credit: no gradient yet, no norm yet."""

    def heads_alone(*given):
        return *heads_by_division(*given)[:2], None, None

    assert [level.points for level in check("05.6", heads_alone).levels] == [1, 0, 0, 0]
    assert "the kv heads' gradient on rank 0: NoneType, not a tensor" in check("05.6", heads_alone).reason


def test_only_what_ranks_must_have_alike_is_compared_among_them():
    x, y, wrong = torch.eye(2), torch.ones(2, 2), torch.tensor([[1.0, 2.0], [3.0, 5.0]])
    got = {(0, "w"): wrong, (1, "w"): wrong.T}
    assert differing(got, {(0, "w"): x, (1, "w"): x}, (), {}).endswith(", and the ranks hold different ones")
    assert differing(got, {(0, "w"): x, (1, "w"): y}, (), {}).endswith("reference")


@pytest.mark.parametrize("exercise", SOLUTIONS)
def test_products_of_the_whole_matrices_are_too_many(exercise, answers):
    """The values are right; what a rank computes besides its part is seen wherever it is done."""
    right = answers("solutions", "05_tensor_parallelism")[SOLUTIONS[exercise]]

    def wasteful(x, weight, *others):
        for _ in range(dist.get_world_size()):
            torch.einsum("ri,oi->ro", x, weight)
        return right(x, weight, *others)

    failed = next(level for level in check(exercise, wasteful).levels if not level.passed)
    assert failed.name == "calls" and "multiplications in its products, target" in failed.detail
