"""Each adapter climbs beside a plain loop, and shows a bug of the engine that it wraps."""

from __future__ import annotations

import ast
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from ladder_models import EVEN, TEXT, UNEVEN, VOCABULARY, Toy
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from course_lib.training.batches import Batches
from course_lib.verify import RUNGS, NotEqual, adapters, assert_parallel_equals
from course_lib.verify.adapters.loop import Loop
from course_lib.verify.adapters.pipelining import Pipelined
from course_lib.verify.adapters.sharded import Sharded

RAGGED = Batches(text=TEXT, batch_size=12, sequence=5, ragged=True)
MOST_LINES = 40


def plain(config):
    return Loop(Toy(), config)


def fsdp2(config):
    torch.manual_seed(0)  # none of these engines gives the ranks one rank's weights
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    return Sharded(fully_shard(Toy(), mesh=mesh), config, shares=mesh)


def dtensors(config):
    torch.manual_seed(0)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    plan = {
        "embedding": RowwiseParallel(input_layouts=Replicate()),
        "inner": ColwiseParallel(),
        "head": RowwiseParallel(),
    }
    return Sharded(parallelize_module(Toy(), mesh, plan), config)


@pytest.mark.parametrize("parallel", [fsdp2, dtensors])
def test_sharded_models_climb_all_rungs(parallel):
    report = assert_parallel_equals(plain, parallel, UNEVEN, world_size=2)
    assert tuple(report.deviations) == RUNGS and report.notes == ()


class Blocks(nn.Sequential):
    """Two stages of one model."""

    def __init__(self):
        super().__init__(nn.Embedding(VOCABULARY, 6), nn.Linear(6, 6), nn.GELU(), nn.Linear(6, VOCABULARY))


def mean_loss(output, targets):
    return nn.functional.cross_entropy(output.flatten(0, -2), targets.flatten())


def unseeded(config):
    """Each rank's stage is born with other weights than the whole model."""
    model, rank = Blocks(), dist.get_rank()
    for name in (("2", "3"), ("0", "1"))[rank]:
        delattr(model, name)
    stage = PipelineStage(model, rank, dist.get_world_size(), torch.device("cpu"))
    return Pipelined(stage, ScheduleGPipe(stage, 3, loss_fn=mean_loss), config)


def pipelined(config):
    torch.manual_seed(0)
    return unseeded(config)


def test_a_pipeline_of_torch_climbs_but_for_its_output():
    def reference(config):
        return Loop(Blocks(), config)

    report = assert_parallel_equals(reference, pipelined, EVEN, world_size=2)
    assert report.left_out == {"output": "the parallel side has no output(inputs)"}
    with pytest.raises(NotEqual, match="each micro-batch counts the same, however many targets it has") as caught:
        assert_parallel_equals(reference, pipelined, RAGGED, world_size=2)
    assert caught.value.causes == ("mean of micro-batch means",)
    with pytest.raises(NotEqual, match="before the first step rank 0's .* is not one device's") as caught:
        assert_parallel_equals(reference, unseeded, EVEN, world_size=2)
    assert (caught.value.rung, caught.value.causes) == ("gradients", ("built otherwise",))


def accelerated(config, accumulation=3):
    from accelerate import Accelerator

    from course_lib.verify.adapters.accelerate import Accelerated, as_torchrun

    as_torchrun()
    return Accelerated(Toy(), config, Accelerator(cpu=True, gradient_accumulation_steps=accumulation))


def test_accelerate_climbs_all_rungs_with_micro_batches():
    report = assert_parallel_equals(plain, accelerated, UNEVEN, world_size=2)
    assert tuple(report.deviations) == RUNGS and report.notes == ()


def llama():
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = {"hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 1, "num_attention_heads": 2}
    return LlamaForCausalLM(LlamaConfig(**sizes, vocab_size=VOCABULARY, attn_implementation="eager"))


def trainer_of(config, accumulation=1, own_means=False):
    from transformers import Trainer

    from course_lib.verify.adapters.transformers import HFTrainer, arguments

    trainer = Trainer(llama(), arguments(config, gradient_accumulation_steps=accumulation))
    trainer.model_accepts_loss_kwargs = not own_means
    return HFTrainer(trainer)


def test_the_trainer_of_transformers_climbs_with_micro_batches_on_ranks():
    report = assert_parallel_equals(trainer_of, partial(trainer_of, accumulation=2), RAGGED, world_size=2)
    assert tuple(report.deviations) == ("output", "gradients", "parameters", "loss curve", "AdamW")
    assert report.narrow == torch.float32 and report.deviations["gradients"] < 1e-13


def test_what_transformers_4_45_did_with_micro_batches_is_named():
    with pytest.raises(NotEqual, match="each micro-batch counts the same, however many targets it has") as caught:
        assert_parallel_equals(trainer_of, partial(trainer_of, accumulation=2, own_means=True), RAGGED, world_size=2)
    assert (caught.value.rung, caught.value.causes) == ("gradients", ("mean of micro-batch means",))


@pytest.mark.parametrize("file", sorted(Path(adapters.__file__).parent.glob("[a-z]*.py")), ids=lambda file: file.stem)
def test_an_adapter_is_short(file):
    lines = file.read_text(encoding="utf-8").splitlines()
    (adapter,) = (node for node in ast.parse("\n".join(lines)).body if isinstance(node, ast.ClassDef))
    assert len([line for line in lines[adapter.lineno : adapter.end_lineno] if line]) <= MOST_LINES
