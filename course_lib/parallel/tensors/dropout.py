"""Random numbers under tensor parallelism: the same where ranks compute the same, others where each has its features.

A residual that is dropped on one rank and not on another would let the ranks' copies of the weights drift apart; a mask
that is the same for the features of all ranks would be one mask, used several times.
Source: Shoeybi et al. 2019, Megatron-LM, section 3.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.nn.modules.dropout import _DropoutNd

from course_lib.comm.call import device_of
from course_lib.parallel.data.replicate import broadcast_tensors
from course_lib.parallel.tensors.region import Region
from course_lib.parallel.tensors.styles import Style

_WORDS = ("dropout", "jitter")  # in names of what modules of `transformers` have for themselves


def spread_dropout(model: nn.Module, styles: Mapping[str, Style], region: Region) -> None:
    """From now on let the ranks of a region draw the same random numbers, and others between columns and row.

    They go on from where the first rank is, so that what is dropped outside blocks is what one device drops. Under
    sequence parallelism each rank has positions of its own there, and draws its own numbers everywhere.
    A model without dropout is left alone.

    Cost: a broadcast of the state of the random numbers, 5 kB.
    """
    if not _rates(model):
        return
    group = region.operators.group
    device = device_of(group)  # the model may be on meta
    _share(device, group)
    if region.sequence_parallel:
        _draw_own(device, group.rank())
        return
    for name in dict.fromkeys(name.rpartition(".")[0] for name, style in styles.items() if style == "column"):
        block = model.get_submodule(name)
        if _rates(block):
            own = _OwnNumbers(block, device, group.rank())
            for child, module in block.named_children():
                own.watch(module, styles.get(f"{name}.{child}".removeprefix(".")))


class _OwnNumbers:
    """Lets a rank draw numbers of its own inside a block.

    They follow from one that is drawn of the common numbers, and the rank: what activation checkpointing computes a
    second time in backward, from the same common numbers, drops the same again.
    """

    def __init__(self, block: nn.Module, device: torch.device, rank: int) -> None:
        self.block, self.device, self.rank = block, device, rank
        self.common: list[Tensor] = []  # states to come back to
        block.register_forward_hook(self.end, always_call=True)  # if the row is not reached

    def watch(self, module: nn.Module, style: Style | None) -> None:
        """Begin behind a column, end before the row."""
        if style == "column":
            module.register_forward_hook(self.begin)
        elif style == "row":
            module.register_forward_pre_hook(self.end)

    def begin(self, *_: Any) -> None:
        """The first of several columns begins; if nothing is dropped, no number is drawn."""
        if self.block.training and not self.common and any(_rates(self.block)):
            self.common = _draw_own(self.device, self.rank)

    def end(self, *_: Any) -> None:
        """Go on with the common numbers."""
        if self.common:
            _set(self.device, self.common)
        self.common = []


def _share(device: torch.device, group: ProcessGroup) -> None:
    """Take over the first rank's states."""
    states = [generator.get_state().to(device) for generator in _generators(device)]
    broadcast_tensors(states, group, dist.get_process_group_ranks(group)[0])
    _set(device, [state.cpu() for state in states])


def _draw_own(device: torch.device, rank: int) -> list[Tensor]:
    """Seed by a common random number and the rank; the states of the common numbers after that."""
    seed, generators = int(torch.randint(2**62, (), device="cpu")), _generators(device)
    states = [generator.get_state() for generator in generators]
    for generator in generators:
        generator.manual_seed(seed + rank)
    return states


def _set(device: torch.device, states: Sequence[Tensor]) -> None:
    for generator, state in zip(_generators(device), states, strict=True):
        generator.set_state(state)


def _generators(device: torch.device) -> list[torch.Generator]:
    """The CPU's numbers, which a seed is drawn of; on a GPU dropout has its own."""
    own = [torch.cuda.default_generators[device.index]] if device.type == "cuda" else []
    return [torch.default_generator, *own]


def _rates(module: nn.Module) -> list[float]:
    """The rates of all that is random inside: of dropout layers, and what a module of `transformers` uses itself."""
    found: list[float] = []
    for one in module.modules():
        for name, value in vars(one).items():
            is_rate = any(word in name for word in _WORDS) or (name == "p" and isinstance(one, _DropoutNd))
            if is_rate and isinstance(value, int | float):
                found.append(value)
    return found
