"""Right answers to exercises of module 06, written in other ways than the solutions; what a verdict rests on."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F

from course_lib import comm
from course_lib.checks import check

P, AVG = dist.get_world_size, dist.ReduceOp.AVG


class RowOfSmallPieces:
    """Keeps a tensor of its own for each piece, and finds them number by number."""

    def __init__(self, tensors):
        self.shapes, rank = [x.shape for x in tensors], dist.get_rank()
        owner = [r for r, part in enumerate(torch.cat([x.flatten() for x in tensors]).tensor_split(P())) for _ in part]
        self.mine = []
        for x in tensors:
            owners, owner = torch.tensor(owner[: x.numel()]), owner[x.numel() :]
            self.mine.append(torch.nn.Parameter(x.flatten()[owners == rank]))

    def pieces(self):
        return self.mine

    def gather(self):
        lengths = [shape.numel() for shape in self.shapes]
        row = comm.all_gather(torch.cat([x.detach() for x in self.mine]), length=sum(lengths))
        return tuple(part.reshape(shape) for part, shape in zip(row.split(lengths), self.shapes, strict=True))


class PaddedFirst:
    """Pads the whole tensor, and cuts that into equal parts."""

    def __init__(self, tensors):
        self.shapes = [x.shape for x in tensors]
        self.padded = [F.pad(x.flatten(1) if x.dim() > 1 else x[:, None], (0, 0, 0, -len(x) % P())) for x in tensors]
        self.padded = [x.view(P(), -1, x.shape[1])[dist.get_rank()].clone() for x in self.padded]
        left = [len(x) - dist.get_rank() * len(mine) for x, mine in zip(tensors, self.padded, strict=True)]
        self.rows = [max(0, min(n, len(mine))) for n, mine in zip(left, self.padded, strict=True)]

    def pieces(self):
        found = zip(self.padded, self.rows, self.shapes, strict=True)
        return [mine[:rows].view(rows, *shape[1:]) for mine, rows, shape in found]

    def buffer(self):
        return torch.cat([mine.flatten() for mine in self.padded])

    def gather(self):
        lines, wholes = comm.all_gather(self.buffer()).view(P(), -1), []
        for mine, shape in zip(self.padded, self.shapes, strict=True):
            column, lines = lines[:, : mine.numel()], lines[:, mine.numel() :]
            wholes.append(column.reshape(-1)[: shape.numel()].reshape(shape))
        return wholes


def zero_1_with_pytorch_s_clipping(weights, gradients, make_optimizer, max_norm):
    """Its 1e-6 more in the norm are less than rounding here. The norm is a tensor."""
    piece = weights.tensor_split(P())[dist.get_rank()].clone().requires_grad_()
    optimizer = make_optimizer([{"params": [piece]}])
    for gradient in gradients:
        optimizer.zero_grad()
        piece.grad = comm.reduce_scatter(gradient, op=AVG)
        norm = comm.all_reduce(piece.grad.norm() ** 2).sqrt()
        torch.nn.utils.clip_grads_with_norm_([piece], max_norm, norm)
        optimizer.step()
        weights = comm.all_gather(piece.detach(), length=len(weights))
    return weights, norm


class GatheredInTheNewWay(torch.autograd.Function):
    """With setup_context."""

    @staticmethod
    def forward(x, piece, shape):
        whole = torch.zeros(shape).flatten()
        whole.tensor_split(P())[dist.get_rank()].copy_(piece)
        comm.all_gather_(whole)
        return F.linear(x, whole.view(shape))

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, piece, ctx.shape = inputs
        ctx.save_for_backward(x, piece)

    @staticmethod
    def backward(ctx, gradient):
        x, piece = ctx.saved_tensors
        weight = comm.all_gather(piece, length=ctx.shape[0] * ctx.shape[1]).view(ctx.shape)
        return gradient @ weight, comm.reduce_scatter(torch.einsum("ro,ri->oi", gradient, x).flatten(), op=AVG), None


def reduce_into_zeros(parameters, pieces):
    for p, piece in zip(parameters, pieces, strict=True):
        piece.grad = torch.zeros_like(piece)

        def came(p, piece=piece):
            whole, p.grad = p.grad, None
            piece.grad += comm.reduce_scatter(whole.reshape(-1), op=AVG)

        p.register_post_accumulate_grad_hook(came)
    return [None] * len(parameters)


ANSWERS = {
    "06.1": RowOfSmallPieces,
    "06.2": PaddedFirst,
    "06.3": zero_1_with_pytorch_s_clipping,
    "06.5": GatheredInTheNewWay,
    "06.6": reduce_into_zeros,
}


@pytest.mark.parametrize("exercise", ANSWERS)
def test_a_right_answer_passes_however_it_is_written(exercise):
    assert check(exercise, ANSWERS[exercise]).passed


# the hunts' own classes stand in the notebook


def averages_in_both_groups(given):
    class Averaged(given["Unit"]):
        def diagnosis(self):
            return ["gradients", 1 / 2]

        def average(self, row):
            mine = comm.reduce_scatter(row, op=AVG, group=self.inside)
            return comm.all_reduce(mine, op=AVG, group=self.across)

    return Averaged


def notes_what_is_fresh(given, frees=True):
    """Says itself whether a row is of this step."""
    unit = given["Unit"]

    class Noting(given["Saving"]):
        fresh = False

        def diagnosis(self):
            return "parameters", 2

        def gather(self):
            if not self.fresh:
                unit.gather(self)
            self.fresh = self.is_last and torch.is_grad_enabled()

        def gradient_came(self, p):
            super().gradient_came(p)
            if all(q.grad is None for q in self.whole):
                self.fresh = False
                if frees:
                    unit.free(self)

    return Noting


@pytest.mark.parametrize(("exercise", "make"), [("06.9", averages_in_both_groups), ("06.10", notes_what_is_fresh)])
def test_every_repair_that_is_right_is_accepted(exercise, make, answers):
    assert check(exercise, make(answers("solutions", "06_zero_and_fsdp"))).passed


def test_a_saved_gather_is_not_bought_with_a_layer_that_stays_whole(answers):
    refills = notes_what_is_fresh(answers("solutions", "06_zero_and_fsdp"), frees=False)
    failed = next(level for level in check("06.10", refills).levels if not level.passed)
    assert (failed.name, failed.points) == ("calls", 0)
    assert "after backward layer2 is still whole on rank 0" in failed.detail
