"""Tokens on their way to experts of other ranks, and what these make of them on its way back.

    dispatch   each rank says how many rows it has for each expert, then sends them: an all-to-all of unequal parts
    compute    every rank has rows of all ranks for its own experts
    combine    the same all-to-all the other way round

Source: Lepikhin et al. 2020, GShard, section 3.2; Rajbhandari et al. 2022, DeepSpeed-MoE, section 5.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from course_lib import comm
from course_lib.models.moe import Computed
from course_lib.parallel.tensors.conjugate import conjugate
from course_lib.split import split_sizes


class Spread:
    """The experts of a layer over the ranks of a group, as `torch.tensor_split` cuts them."""

    def __init__(self, group: ProcessGroup, n_experts: int) -> None:
        self.group = group
        self.experts = split_sizes(n_experts, group.size())  # how many each rank has

    def dispatch(self, rows: Tensor, counts: Tensor, computed: Computed) -> Tensor:
        """Let every row be computed where its expert is, and bring the results back in the same order.

        Shapes: rows (N, H) in the order of experts, counts (E,) -> (N, H).
        Cost: `costs.comm.experts`; the backward pass sends gradients the same two ways.
        """
        here = self.experts[self.group.rank()]
        of_ranks = counts.split(self.experts)
        # How many rows will come is in the others' data, so the counts go first.
        received = comm.all_to_all_uneven(of_ranks, [(here,)] * self.group.size(), group=self.group)
        table = torch.stack(received)  # (p, E/p): from each rank, for each expert
        leaving = [int(of_rank.sum()) for of_rank in of_ranks]
        coming = table.sum(1).tolist()
        arrived = self._exchange(rows, leaving, coming)
        # They lie by rank, and in each rank's part by expert. An expert wants all of its rows together.
        of_expert = torch.arange(here, device=rows.device).repeat(len(coming)).repeat_interleave(table.flatten())
        order = of_expert.argsort(stable=True)
        made = computed(arrived[order], table.sum(0))
        back = order.argsort()  # where each row that arrived stands now: the way back of a permutation
        return self._exchange(made[back], coming, leaving)

    def _exchange(self, rows: Tensor, leaving: Sequence[int], coming: Sequence[int]) -> Tensor:
        """So many rows to each rank and from each; their gradients go back on the same ways."""
        return conjugate(
            rows,
            forward=lambda rows: self._sent(rows, leaving, coming),
            backward=lambda gradient: self._sent(gradient, coming, leaving),
        )

    def _sent(self, rows: Tensor, leaving: Sequence[int], coming: Sequence[int]) -> Tensor:
        shapes = [(count, rows.shape[1]) for count in coming]
        return torch.cat(comm.all_to_all_uneven(rows.split(list(leaving)), shapes, group=self.group))
