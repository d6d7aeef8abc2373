"""Proof rows of shared sequences and spread experts: three ways to attend, experts, and both beside replicas.

What experts send depends on which tokens choose them. So one device trains the same steps first, and its choices are
what the formula is asked about.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import get_args

import torch
from torch import Tensor

from course_lib.cli import training_rows
from course_lib.cli.proof import Row, Rows
from course_lib.comm.traces import Traffic
from course_lib.config import ModelConfig, TrainConfig
from course_lib.costs.comm.collectives import comm_time
from course_lib.costs.comm.context import gathered_context, ring_attention, ulysses
from course_lib.costs.comm.ddp import ddp_step, ddp_wrapping
from course_lib.costs.comm.experts import expert_exchange
from course_lib.costs.comm.traffic import CommTime
from course_lib.models.decoder import Decoder
from course_lib.models.moe import MoEDecoder, mixtures_of
from course_lib.parallel.table.layout import coordinates
from course_lib.parallel.table.mesh import make_mesh
from course_lib.parallel.table.meta import all_on_meta
from course_lib.sequence_cut import ContextMethod, SequenceCut
from course_lib.split import split_sizes
from course_lib.training.batches import Batches
from course_lib.training.context_technique import context
from course_lib.training.expert_technique import experts
from course_lib.training.setup import Technique
from course_lib.training.techniques import replicate
from course_lib.training.trainer import Trainer
from course_lib.verify import assert_parallel_equals
from course_lib.verify.alike import SGD, born_with

_DENSE = training_rows.MODEL
_MIXTURE = replace(_DENSE, name="tour, experts", n_experts=6, experts_per_token=2, ffn_size=48)
_DTYPE = torch.float64
_SEQUENCES, _SEQUENCE, _STEPS = 2, 32, 2
_FORMULAS = {"all_gather": gathered_context, "ring": ring_attention, "ulysses": ulysses}
_EXPERTS = ".experts."  # in the names of their tensors
_At = dict[str, int]  # a rank's coordinates
_Met = tuple[CommTime, int]  # what a group sends, and a rank's place in it


@dataclass(frozen=True, kw_only=True)
class _Degrees:
    """How many ranks along each axis, and the way to attend along "cp"."""

    dp: int = 1
    ep: int = 1
    cp: int = 1
    method: ContextMethod = "ring"

    @property
    def sizes(self) -> dict[str, int]:
        """In the order of a mesh."""
        return {"dp": self.dp, "ep": self.ep, "cp": self.cp}

    @property
    def world_size(self) -> int:
        """All ranks."""
        return self.dp * self.ep * self.cp

    @property
    def model(self) -> ModelConfig:
        """Experts where ranks share some."""
        return _MIXTURE if self.ep > 1 else _DENSE

    @property
    def in_words(self) -> str:
        """As the table has it."""
        way = f"{self.method}, " if self.cp > 1 else "experts, "
        return way + " x ".join(f"{axis}={size}" for axis, size in self.sizes.items() if size > 1)


def _context_expert_rows(world_size: int, text: bytes) -> Iterator[Row]:
    """All ranks share sequences, then experts; on eight, also where the other rows have four, both and replicas."""
    if world_size == 1:
        return
    for method in get_args(ContextMethod):
        if world_size <= (_DENSE.n_heads if method == "ulysses" else _SEQUENCE):
            yield _row(_Degrees(cp=world_size, method=method), text)
    if world_size <= _MIXTURE.n_experts:
        yield _row(_Degrees(ep=world_size), text)
    if world_size in (4, 8):
        yield _row(_Degrees(dp=2, ep=2, cp=2), text)


def _row(degrees: _Degrees, text: bytes) -> Row:
    """Climb the verification ladder; compare the SGD run's traffic and memory with their formulas."""
    batches = Batches(text=text, batch_size=_SEQUENCES * degrees.dp * degrees.ep, sequence=_SEQUENCE)
    alone, on_ranks = (partial(make, degrees=degrees) for make in (_alone, _on_ranks))
    report = assert_parallel_equals(alone, on_ranks, batches, world_size=degrees.world_size, steps=_STEPS, dtype=_DTYPE)
    held = [2 * _DTYPE.itemsize * sum(_held(degrees, at["ep"])) for at in coordinates(degrees.sizes)]
    return Row(
        technique=degrees.in_words,
        world_size=degrees.world_size,
        deviation=report.max_deviation,
        tolerance=report.tolerance,
        traffic=Traffic.measured(report.ledger),
        predicted=_traffic(degrees, _choices(degrees, batches)),
        step_s=report.step_s,
        state_bytes=report.peak_state_bytes,
        predicted_state_bytes=tuple(held),
    )


def _model(config: ModelConfig) -> Decoder:
    return MoEDecoder(config) if config.n_experts > 1 else Decoder(config)


def _alone(config: TrainConfig, degrees: _Degrees) -> Trainer:
    return Trainer(_model(degrees.model), config)


def _on_ranks(config: TrainConfig, degrees: _Degrees) -> Trainer:
    apply: list[Technique] = [context(degrees.method)] if degrees.cp > 1 else []
    apply += [experts()] if degrees.ep > 1 else []
    apply += [replicate()] if degrees.dp > 1 else []
    return Trainer(_model(degrees.model), config, mesh=make_mesh(**degrees.sizes), apply=apply)


def _choices(degrees: _Degrees, batches: Batches) -> list[list[Tensor]]:
    """In each step and layer the experts of every token, (B, S, k), as one device chooses in the same training."""
    found: list[list[Tensor]] = []
    with born_with(0, _DTYPE):
        trainer = _alone(SGD, degrees)
        for mixture in mixtures_of(trainer.model):
            mixture.router.register_forward_hook(
                lambda _, args, scores, k=mixture.k: found[-1].append(scores.topk(k).indices)
            )
        for step in range(_STEPS):
            found.append([])
            trainer.step(batches.batch(step))
    shape = (batches.batch_size, batches.sequence, -1)
    return [[chosen.view(shape) for chosen in layers] for layers in found]


def _traffic(degrees: _Degrees, choices: Sequence[Sequence[Tensor]]) -> Traffic:
    """What each rank sends in all of its groups, added up."""
    found = []
    for at in coordinates(degrees.sizes):
        met = [*_wrapping(degrees, at)]
        for chosen in choices:
            met += [*_layers(degrees, at), *_exchanges(degrees, at, chosen), *_after_backward(degrees, at)]
        columns = zip(*((one.sent_bytes[i], one.received_bytes[i], one.messages[i]) for one, i in met), strict=True)
        found.append([sum(column) for column in columns])
    sent, received, messages = (tuple(column) for column in zip(*found, strict=True))
    return Traffic(sent_bytes=sent, received_bytes=received, messages=messages)


def _wrapping(degrees: _Degrees, at: _At) -> Iterator[_Met]:
    """Each technique makes the ranks of its axis begin with the same weights; replicas with what is left of them."""
    whole = list(_numbers(degrees).values())
    for axis in ("cp", "ep"):
        yield ddp_wrapping([(whole, _DTYPE.itemsize)], world_size=degrees.sizes[axis]), at[axis]
    if degrees.dp > 1:
        mine = _held(degrees, at["ep"])
        yield ddp_wrapping([(mine, _DTYPE.itemsize)], world_size=degrees.dp * degrees.cp), _data_place(degrees, at)


def _layers(degrees: _Degrees, at: _At) -> Iterator[_Met]:
    """Along cp: in every layer attention forward and backward, and how often each expert was chosen."""
    cut, model = SequenceCut(_SEQUENCE, degrees.cp, "zigzag"), degrees.model
    attention = partial(_FORMULAS[degrees.method], model, cut, batch=_SEQUENCES, itemsize=_DTYPE.itemsize)
    for _ in range(model.n_layers):
        yield attention(when="forward"), at["cp"]
        yield attention(when="backward"), at["cp"]
        if model.n_experts > 1:
            yield _all_reduce(degrees.cp, _SEQUENCES * model.n_experts), at["cp"]


def _exchanges(degrees: _Degrees, at: _At, chosen: Sequence[Tensor]) -> Iterator[_Met]:
    """Along ep: in every layer the rows of each rank's own sequences and positions, there and back, twice."""
    mine = SequenceCut(_SEQUENCE, degrees.cp, "zigzag").positions(at["cp"])
    for of_layer in chosen:
        shares = of_layer.tensor_split(degrees.dp)[at["dp"]].tensor_split(degrees.ep)
        counts = [torch.bincount(part[:, mine].flatten(), minlength=_MIXTURE.n_experts).tolist() for part in shares]
        for when in ("forward", "backward"):
            exchange = partial(expert_exchange, counts, hidden_size=_MIXTURE.hidden_size, itemsize=_DTYPE.itemsize)
            yield exchange(when=when), at["ep"]


def _after_backward(degrees: _Degrees, at: _At) -> Iterator[_Met]:
    """Gradients, which are terms along cp and ep and means along dp; then samples, targets, losses and the norm."""
    mine = _held(degrees, at["ep"])
    rest = sum(count for name, count in _numbers(degrees).items() if _EXPERTS not in name)
    if degrees.dp > 1:
        world_size = degrees.dp * degrees.cp
        yield ddp_step(mine, world_size=world_size, itemsize=_DTYPE.itemsize), _data_place(degrees, at)
    else:
        yield _all_reduce(degrees.cp, sum(mine)), at["cp"]
    yield _all_reduce(degrees.ep, rest), at["ep"]
    for count in (2, 1):
        yield _gather(degrees.ep, count), at["ep"]
        yield _gather(degrees.dp, count * degrees.ep), at["dp"]
    yield _all_reduce(degrees.cp, 1), at["cp"]
    yield _all_reduce(degrees.ep, 1), at["ep"]


def _all_reduce(world_size: int, length: int) -> CommTime:
    return comm_time("all_reduce", "ring", world_size=world_size, length=length, itemsize=8)


def _gather(world_size: int, length: int) -> CommTime:
    return comm_time("all_gather", "ring", world_size=world_size, length=length * world_size, itemsize=8)


def _data_place(degrees: _Degrees, at: _At) -> int:
    """Among the ranks over which gradients are averaged."""
    return at["dp"] * degrees.cp + at["cp"]


def _numbers(degrees: _Degrees) -> dict[str, int]:
    """How many each of the model's tensors has, whole."""
    with all_on_meta():
        return {name: parameter.numel() for name, parameter in _model(degrees.model).named_parameters()}


def _held(degrees: _Degrees, ep_rank: int) -> list[int]:
    """The same of what a rank has: some experts of each layer, and all of the rest."""
    all_experts = degrees.model.n_experts
    here = split_sizes(all_experts, degrees.ep)[ep_rank]
    numbers = _numbers(degrees).items()
    return [count // all_experts * here if _EXPERTS in name else count for name, count in numbers]


ROWS = Rows(lesson=9, prove=_context_expert_rows)
