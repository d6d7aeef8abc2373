"""Adapters on ranks equal one device: under every way to share a model, also where the frozen weights are codes."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from math import prod

import pytest
import torch
from ladder_models import STEPS
from sequence_models import DATA, LLAMA, SHAPES, batches, said
from torch import nn

from course_lib import comm
from course_lib.comm.traces import Traffic
from course_lib.config import ParallelConfig, TrainConfig
from course_lib.costs.model.activations import bytes_on_rank
from course_lib.costs.model.adapter_activations import adapter_activations
from course_lib.costs.model.adapters import MAPS, Adapters
from course_lib.gauges.allocated import saved_bytes
from course_lib.models.decoder import Decoder
from course_lib.models.moe import MoEDecoder
from course_lib.parallel.table.mesh import AXES, make_mesh
from course_lib.ranks import ledger, run_ranks
from course_lib.savers.ia3 import IA3Linear, add_ia3
from course_lib.savers.lora import LoRALinear, add_lora
from course_lib.savers.quantised_linear import quantise
from course_lib.savers.targets import ALL, QUERIES_AND_VALUES
from course_lib.schedules import make_schedule
from course_lib.training.context_technique import context
from course_lib.training.expert_technique import experts
from course_lib.training.techniques import stages
from course_lib.training.tensor_technique import tensor
from course_lib.training.torch_sharding import torch_fully_shard
from course_lib.training.torch_techniques import torch_replicate
from course_lib.training.trainer import Trainer
from course_lib.verify import RUNGS, assert_parallel_equals

EVEN = replace(LLAMA, n_kv_heads=4, ffn_size=24)
ADAPTED = {
    "lora": lambda model: add_lora(model, 4, 8.0),
    "lora of queries and values": lambda model: add_lora(model, 3, targets=QUERIES_AND_VALUES),
    "lora of the head too": lambda model: add_lora(model, 2, targets=("layers.*.ffn.*_proj", "head")),
    "lora of attention": lambda model: add_lora(model, 3, targets=ALL[:1]),
    "ia3": add_ia3,
    "ia3 elsewhere": lambda model: add_ia3(model, ("layers.*.ffn.down_proj",), ("layers.*.attention.k_proj",)),
    "qlora": lambda model: add_lora(quantise(model), 4, 8.0),
}
SHARDED = {**DATA, "torch ddp": torch_replicate, "torch fsdp": torch_fully_shard}


def model_of(adapt, shape="llama"):
    """With adapters that have been trained for a while, so that every one of their parts has a gradient at once."""
    config = SHAPES[shape]
    model = ADAPTED[adapt](MoEDecoder(config) if config.n_experts > 1 else Decoder(config))
    for module in model.modules():
        if isinstance(module, LoRALinear):
            nn.init.normal_(module.B, std=0.1)
        if isinstance(module, IA3Linear):
            nn.init.normal_(module.factors, 1.0, 0.1)
    return model


def alone(config, *, adapt="lora", shape="llama"):
    return Trainer(model_of(adapt, shape), config)


def spread(config, *, adapt="lora", shape="llama", data=None, sequence_parallel=None, schedule=None, **degrees):
    apply = []
    if degrees.get("tp", 1) > 1:
        apply.append(tensor(sequence_parallel=sequence_parallel))
    if degrees.get("cp", 1) > 1:
        apply.append(context("ring"))
    if degrees.get("ep", 1) > 1:
        apply.append(experts())
    if schedule is not None:
        apply.append(stages(make_schedule(schedule, degrees["pp"], 3)))
    if data is not None:
        apply.append(SHARDED[data]())
    return Trainer(model_of(adapt, shape), config, mesh=make_mesh(**degrees), apply=apply)


def climbs(*, accumulation=1, **case):
    degrees = [case[axis] for axis in AXES if axis in case]
    shared = {name: case[name] for name in ("adapt", "shape") if name in case}

    def make(build, options, config):
        return build(replace(config, accumulation=accumulation), **options)

    one, many = partial(make, alone, shared), partial(make, spread, case)
    report = assert_parallel_equals(one, many, batches(), world_size=prod(degrees), steps=STEPS)
    assert tuple(report.deviations) == RUNGS and report.max_deviation <= 1e-11


@pytest.mark.parametrize(
    "case",
    [
        {"data": "ddp", "dp": 3, "adapt": "qlora"},
        {"data": "zero2", "dp": 2, "adapt": "ia3", "accumulation": 2},
        {"data": "fsdp", "dp": 4},
        {"data": "fsdp", "dp": 3, "adapt": "lora of queries and values"},
        {"data": "fsdp", "dp": 2, "adapt": "qlora"},
        {"data": "torch ddp", "dp": 2},
        {"data": "torch fsdp", "dp": 2},
    ],
    ids=str,
)
def test_data_parallelism_equals_one_device(case):
    climbs(**case)


@pytest.mark.parametrize(
    "case",
    [
        {"tp": 4, "sequence_parallel": "keep"},  # of two heads of keys: each lies on two ranks
        {"tp": 3, "shape": "one kv head", "sequence_parallel": "regather"},
        {"tp": 4, "adapt": "ia3", "sequence_parallel": "keep"},
        {"tp": 2, "adapt": "lora of queries and values"},
        {"tp": 2, "adapt": "ia3 elsewhere", "sequence_parallel": "regather"},
        {"tp": 2, "adapt": "lora of the head too", "sequence_parallel": "keep"},
    ],
    ids=str,
)
def test_a_and_b_are_cut_as_their_matrix(case):
    climbs(**case)


@pytest.mark.parametrize(
    "case",
    [
        {"tp": 2, "dp": 2, "data": "fsdp", "sequence_parallel": "keep"},
        {"tp": 2, "pp": 2, "schedule": "1f1b"},
        {"pp": 2, "dp": 2, "data": "zero1", "schedule": "gpipe", "adapt": "qlora"},
        {"cp": 2, "adapt": "qlora"},
        {"ep": 2, "adapt": "lora of attention", "shape": "moe"},  # the experts are frozen
    ],
    ids=str,
)
def test_beside_each_other(case):
    climbs(**case)


def test_adapters_come_with_the_first_rank_s_numbers():
    """Each rank draws its own A; from the first step on all have the first rank's."""

    def drawn():
        torch.manual_seed(torch.distributed.get_rank())
        trainer = spread(TrainConfig(), data="ddp", dp=4)
        return trainer.local.parameters["layers.0.attention.q_proj.A"].detach().numpy().tobytes()

    assert len({*run_ranks(drawn, 4)}) == 1


def held(adapt, data, **degrees):
    """By kind of parameter the bytes that this rank has."""
    trainer = spread(TrainConfig(optimizer="adamw"), adapt=adapt, data=data, **degrees)
    trainer.step(batches().batch(0))
    of_kind: dict[str, int] = {}
    for name, parameter in trainer.local.parameters.items():
        kind = name.rpartition(".")[2]
        of_kind[kind] = of_kind.get(kind, 0) + parameter.nbytes
    states = sum(x.nbytes for state in trainer.optimizer.state.values() for x in state.values() if x.dim())
    return of_kind, states


def test_fsdp_shares_the_codes_too_and_states_are_those_of_the_adapters():
    (whole, whole_states), *_ = run_ranks(partial(held, "qlora", "ddp", dp=2), 2)
    parts = run_ranks(partial(held, "qlora", "fsdp", dp=4), 4)
    for kind, nbytes in whole.items():
        pieces = [of_kind[kind] for of_kind, _ in parts]
        assert sum(pieces) == nbytes
        assert kind != "codes" or max(pieces) - min(pieces) <= nbytes // 8
    assert sum(states for _, states in parts) == whole_states == 2 * (whole["A"] + whole["B"])


def crossing(rank, sequence_parallel):
    """A batch's forward and backward; the calls of wrapping are not counted."""
    model = add_lora(Decoder(LLAMA), rank)
    trainer = Trainer(model, TrainConfig(), mesh=make_mesh(tp=2), apply=(tensor(sequence_parallel=sequence_parallel),))
    comm.ledger.clear()
    trainer.compute_gradients(batches(8).batch(0))


@pytest.mark.parametrize("sequence_parallel", [None, "keep"])
def test_along_tp_a_token_s_r_numbers_cross_and_nothing_else_of_an_adapter(sequence_parallel):
    """Columns let them enter and rows let them leave: an all-reduce a map, or its two halves, which on two ranks send
    each number once. Under sequence parallelism what is whole adds up its gradients, too, once a step.
    """
    sent = []
    for rank in (2, 4):
        run_ranks(crossing, 2, rank, sequence_parallel)
        sent.append(Traffic.measured(ledger()).sent_bytes)
    tokens, layers = 8 * 8, LLAMA.n_layers
    whole = (5 + 2) * LLAMA.hidden_size if sequence_parallel else 0  # A of five columns, B of two rows
    numbers = layers * 2 * (7 * tokens + whole)
    assert [more - less for less, more in zip(*sent, strict=True)] == [4 * numbers] * 2


def kept(maps, sequence_parallel):
    """What autograd keeps of a forward pass, the weights apart, on this rank."""
    model = add_lora(Decoder(EVEN), 4, targets=[f"layers.*.*.{name}" for name in maps])
    trainer = Trainer(model, TrainConfig(), mesh=make_mesh(tp=2), apply=(tensor(sequence_parallel=sequence_parallel),))
    inputs, targets = batches(8).batch(0)
    trainer.engine.ends.told(inputs)
    return saved_bytes(trainer.model, lambda: trainer.engine.ends.loss(trainer.model(inputs), targets))


@pytest.mark.parametrize("sequence_parallel", [None, "keep"])
def test_along_tp_too_a_frozen_map_keeps_no_input(sequence_parallel):
    """Of two choices of maps the loss keeps the same. Both have the values: where these are as their map made them,
    they lie in one memory with queries and keys, which is kept with them.
    """
    choices, parallel = (MAPS, ("v_proj", "down_proj")), ParallelConfig(tp=2, sequence_parallel=bool(sequence_parallel))
    found, wanted = [], []
    for maps in choices:
        found.append(run_ranks(kept, 2, maps, sequence_parallel)[0])
        rows = adapter_activations(EVEN, Adapters(rank=4, maps=maps), batch=8, sequence=8, itemsize=4)
        wanted.append(bytes_on_rank(rows, parallel))
    assert found[0] - found[1] == wanted[0] - wanted[1] > 0


@pytest.mark.parametrize(
    ("work", "message"),
    [
        (
            partial(spread, TrainConfig(), adapt="qlora", tp=2),
            "tensor: layers.0.attention.q_proj: a LoRALinear; the style 'column' cuts a plain Linear; leave it out",
        ),
    ],
)
def test_what_cannot_be_is_told_on_every_rank(work, message):
    for text in run_ranks(lambda: said(work), 2):
        assert text.startswith(message)
