"""Experts on several ranks (lesson 09): torchrun --nproc-per-node 4 09_experts.py"""

import os

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed._functional_collectives import all_to_all_single_autograd
from torch.nn import functional as F

EXPERTS, CHOSEN, WIDTH, ROWS = 8, 2, 16, 24


def chosen_by(router: Tensor, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Each row's choices in the order of experts: whose row, what it counts, how many for each expert."""
    weights, experts = (rows @ router).softmax(-1).topk(CHOSEN)
    order = experts.flatten().argsort(stable=True)
    counts = torch.bincount(experts.flatten(), minlength=EXPERTS)
    return order // CHOSEN, weights.flatten()[order], counts


def computed(rows: Tensor, counts: Tensor, matrices: Tensor) -> Tensor:
    """Rows that lie in the order of experts, by the expert that each has chosen."""
    of_expert = rows.split(counts.tolist())
    return torch.cat([F.silu(x @ matrix) for x, matrix in zip(of_expert, matrices, strict=True)])


def dispatched(rows: Tensor, counts: Tensor, matrices: Tensor) -> Tensor:
    """The same, where each rank has some of the experts and of the rows."""
    ranks, here = dist.get_world_size(), len(matrices)

    # Nobody can make room for rows before it knows how many come, so the counts travel first.
    coming = torch.empty_like(counts)
    dist.all_to_all_single(coming, counts)
    leave, come = (table.view(ranks, here).sum(1).tolist() for table in (counts, coming))
    arrived = all_to_all_single_autograd(rows, come, leave, dist.group.WORLD)

    # They arrive by rank and are wanted by expert; what comes of them goes home in the order of arrival.
    expert = torch.arange(here).repeat(ranks).repeat_interleave(coming)
    order = expert.argsort(stable=True)
    made = computed(arrived[order], coming.view(ranks, here).sum(0), matrices)
    return all_to_all_single_autograd(made[order.argsort()], leave, come, dist.group.WORLD)


def mixture(rows: Tensor, router: Tensor, matrices: Tensor, experts=computed) -> Tensor:
    """What the experts of its choice make of each row, weighed by the router."""
    whose, weights, counts = chosen_by(router, rows)
    made = experts(rows[whose], counts, matrices) * weights[:, None]
    return torch.zeros_like(rows).index_add(0, whose, made)


def main() -> None:
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    assert EXPERTS % ranks == 0 and ROWS % ranks == 0, "all ranks have as many experts and rows"

    # One device has all rows and all experts, and says what is right.
    torch.manual_seed(0)
    sizes = (ROWS, WIDTH), (WIDTH, EXPERTS), (EXPERTS, WIDTH, WIDTH)
    rows, router, matrices = (torch.randn(size, dtype=torch.float64) for size in sizes)
    whole = [x.clone().requires_grad_() for x in (router, matrices)]
    right = mixture(rows, *whole)
    right.square().sum().backward()

    # A rank has the router, some of the experts and some of the rows.
    mine = [x.clone().requires_grad_() for x in (router, matrices.chunk(ranks)[rank])]
    output = mixture(rows.chunk(ranks)[rank], *mine, experts=dispatched)
    output.square().sum().backward()

    # The router's gradient is a sum of terms; an expert's is whole, for it has seen the rows of all ranks.
    dist.all_reduce(mine[0].grad)
    torch.testing.assert_close(output, right.chunk(ranks)[rank])
    torch.testing.assert_close(mine[0].grad, whole[0].grad)
    torch.testing.assert_close(mine[1].grad, whole[1].grad.chunk(ranks)[rank])
    if rank == 0:
        print(f"{ranks} ranks agree with one device: outputs, gradients of router and experts", flush=True)
    dist.barrier()  # who left first would cut the connections of those who still work
    dist.destroy_process_group()
    os._exit(0)  # gloo's threads still live, and must not meet Python's end


if __name__ == "__main__":
    main()
