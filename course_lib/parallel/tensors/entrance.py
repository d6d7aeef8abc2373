"""One entrance for maps that read the same input: an optimisation of `ColumnParallelLinear`.

Queries, keys and values read the same x. Each by itself adds up its gradient of x over the ranks: three messages about
one tensor. With an `Entrance`
 - x enters once, so that there is one message;
 - the maps are one product, with a matrix of all their weights;
 - the message is under way while backward computes the gradients of the weights;
 - with "regather" this rank keeps its piece of x alone, and the rest is gathered a second time in backward.

A step of the benchmark's decoder takes 19 to 27 % longer without, and still 6 to 7 % longer if maps share the message
and nothing else (`tests/benchmarks/tensor.py`; 2 and 4 ranks on two processors).

The first map that is called computes the features of all, and the others take theirs. So something is remembered, but
only while the module around the maps is in its forward, and only for a call with the same x: not for one that was
changed in place, and not for a call whose results need a gradient if those did not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from course_lib import comm
from course_lib.parallel.tensors.layers import ColumnParallelLinear
from course_lib.parallel.tensors.region import SEQUENCE, Region


class Entrance:
    """Lets column-parallel `maps` of the module `around` them, which read the same input, enter their region once."""

    def __init__(self, around: nn.Module, maps: Sequence[ColumnParallelLinear]) -> None:
        self.maps, self.region = maps, maps[0].region
        self._is_open = False
        self._forget()
        # The weights come to lie behind each other, so that they are one matrix without a copy.
        fused = torch.cat([one.weight.data for one in maps])
        for one, rows in zip(maps, fused.split([len(one.weight) for one in maps]), strict=True):
            one.weight.data = rows
            one.features = partial(self._features, one)  # type: ignore[method-assign]
        around.register_forward_pre_hook(self._open)
        around.register_forward_hook(self._close, always_call=True)  # if it fails, too

    def _open(self, *_: Any) -> None:
        self._forget()
        self._is_open = True

    def _close(self, *_: Any) -> None:
        self._forget()
        self._is_open = False

    def _forget(self) -> None:
        self._input: Tensor | None = None
        self._state: tuple[int, bool] | None = None  # of the input: its version, and whether gradients are wanted
        self._waiting: dict[ColumnParallelLinear, Tensor] = {}  # features that were computed and not called for yet

    def _features(self, one: ColumnParallelLinear, x: Tensor) -> Tensor:
        """This rank's features of one map."""
        # A tensor of `torch.inference_mode` has no version, so that nobody would see that it was changed.
        if not self._is_open or x.is_inference():
            return _features_of([one], x, self.region)[0]
        state = x._version, torch.is_grad_enabled()
        if x is not self._input or state != self._state or one not in self._waiting:
            features = _features_of(self.maps, x, self.region)
            self._input, self._state = x, state
            self._waiting = dict(zip(self.maps, features, strict=True))
        mine = self._waiting.pop(one)
        if not self._waiting:
            self._forget()  # nothing is kept longer than it must
        return mine


def _features_of(maps: Sequence[ColumnParallelLinear], x: Tensor, region: Region) -> Sequence[Tensor]:
    """The features of all these maps; either all of them have a bias, or none."""
    weights = [one.weight for one in maps]
    biases = [one.bias for one in maps if one.bias is not None]
    features: Tensor = _EnteringLinear.apply(x, region, len(maps), *weights, *biases)
    return features.split([len(weight) for weight in weights], -1)


class _EnteringLinear(torch.autograd.Function):
    """x W^T + b for the weights of several maps; backward adds up the input's gradient while it makes the weights'."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, region: Region, n_maps: int, *parameters: Tensor) -> Tensor:
        weights, biases = parameters[:n_maps], parameters[n_maps:]
        whole = _entered(x, region)
        rows = whole.reshape(-1, whole.shape[-1])  # (B S, in)
        columns = _as_one(weights).t()  # (in, out/tp of all maps)
        y = torch.addmm(torch.cat(biases), rows, columns) if biases else rows @ columns

        ctx.region, ctx.has_biases = region, len(biases) > 0
        kept = x if region.sequence_parallel == "regather" else whole
        # Frozen weights need no input again.
        ctx.save_for_backward(kept if any(ctx.needs_input_grad[3:]) else None, *weights)
        return y.view(*whole.shape[:-1], columns.shape[1])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        kept, *weights = ctx.saved_tensors
        region, wanted = ctx.region, ctx.needs_input_grad[3:]
        rows = gradient.reshape(-1, gradient.shape[-1])  # (B S, out/tp of all maps)

        finish = None
        if ctx.needs_input_grad[0]:
            weight = _as_one(weights)
            terms = (rows @ weight).view(*gradient.shape[:-1], weight.shape[1])
            finish = _begin_to_sum(terms, region)

        # While that message is under way, the gradients of the weights, which need nobody.
        found: list[Tensor | None] = [None for _ in wanted]
        if any(wanted):
            whole = _entered(kept, region) if region.sequence_parallel == "regather" else kept
            sizes = [len(weight) for weight in weights]
            of_weights = rows.t() @ whole.reshape(-1, whole.shape[-1])
            found = [*of_weights.split(sizes)]
            if ctx.has_biases:
                found += rows.sum(0).split(sizes)
        for number, is_wanted in enumerate(wanted):
            if not is_wanted:
                found[number] = None  # of what is frozen
        return finish() if finish else None, None, None, *found


def _as_one(weights: Sequence[Tensor]) -> Tensor:
    """All weights as one matrix, without a copy while they lie behind each other; in a flat row they may, too."""
    first = weights[0]
    end = first.data_ptr()
    for weight in weights:
        same_memory = weight.untyped_storage()._cdata == first.untyped_storage()._cdata
        if not same_memory or weight.data_ptr() != end:
            return torch.cat([*weights])
        end += weight.nbytes
    rows, columns = sum(len(weight) for weight in weights), first.shape[1]
    return first.as_strided((rows, columns), (columns, 1))


# --- `Region.enter` in two halves, without autograd ---


def _entered(x: Tensor, region: Region) -> Tensor:
    if not region.sequence_parallel:
        return x
    region.check_sequence(x)
    return region.operators.gathered(x, SEQUENCE, region.length)


def _begin_to_sum(terms: Tensor, region: Region) -> Callable[[], Tensor]:
    """Begin to add up the ranks' terms of an input's gradient; the result is what comes when it is called.

    The all-reduce runs while the caller goes on, in the memory of `terms`.
    """
    operators = region.operators
    if region.sequence_parallel:
        mine = operators.summed_and_cut(terms, SEQUENCE)
        return lambda: mine
    under_way = comm.all_reduce_(terms, algorithm=operators.algorithm, group=operators.group, async_op=True)

    def finish() -> Tensor:
        under_way.wait()
        return terms

    return finish
