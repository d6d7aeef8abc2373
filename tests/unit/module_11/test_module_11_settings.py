"""What `train` is told of memory savers: words that other commands share, and one line for what cannot be."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from course_lib.cli import train_run
from course_lib.cli.doctor import asked_of
from course_lib.cli.plan_config import read_plan
from course_lib.cli.settings import every
from course_lib.cli.sweep_config import read_sweep
from course_lib.cli.train_config import read_train
from course_lib.cli.train_precision import PRECISIONS
from course_lib.cli.train_settings import TRAIN
from course_lib.costs.sweep.explore import explore
from course_lib.costs.sweep.gpu_memory import gpu_memory
from course_lib.gauges.allocated import saved_bytes
from course_lib.planner.policy_search import search
from course_lib.units import GiB

SMALL = ["batch=4", "sequence=32"]
AGAIN = {  # a word, and what it is: the way, and the layers that keep one input together
    "none": ("none", 1),
    "layers": ("layers", 1),
    "groups:3": ("layers", 3),
    "selective": ("selective", 1),
}


def test_every_precision_that_is_offered_is_known():
    (offered,) = (setting.choices for setting in every(TRAIN) if setting.name == "precision")
    assert offered == tuple(PRECISIONS)


@pytest.mark.parametrize("word", AGAIN)
def test_commands_share_the_words_of_recomputation(word):
    run = read_train([f"recompute={word}"])
    swept = read_sweep(["model=llama3_1_8b", f"recompute={word}"]).exploration
    planned = read_plan(["model=llama3_1_8b", "cluster=dgx_h100", f"recompute={word}"])
    assert (run.recompute, run.group) == (swept.recompute, swept.group) == AGAIN[word]
    assert (planned.space.recompute, planned.job.group) == ((AGAIN[word][0],), AGAIN[word][1])


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("recompute=true", "recompute=true; it is a word that says what layers compute twice; say layers for all of"),
        ("recompute=groups:0", "recompute=groups:0; a group has layers; give groups:1 or more"),
        ("recompute=attention", "recompute='attention'; it is a word that says what layers compute twice; say layers"),
        ("rank=4", "rank=4 without an adapter; it is the width between the two matrices of LoRA; choose adapter=lora "),
        ("adapter=ia3 rank=4", "rank=4 with adapter=ia3; it is the width between the two matrices of LoRA; choose"),
        ("adapter=lora rank=0", "rank=0; rank is positive; give rank >= 1"),
        ("adapter=dora", "adapter='dora'; not a known kind; choose from lora, ia3, qlora"),
        ("adapter=qlora tp=2", "adapter=qlora with tp=2; 64 weights in a row share a scale, and tp cuts rows; choose "),
        ("adapter=lora tp=2 engine=torch", "adapter=lora with engine=torch and tp=2; PyTorch's styles cut a plain map"),
        (
            "adapter=qlora dp=2 zero_stage=3 engine=torch",
            "adapter=qlora with engine=torch and zero_stage=3; PyTorch's engine shares numbers of one dtype, and c",
        ),
        (
            "adapter=qlora dp=2 zero_stage=3 precision=bf16",
            "adapter=qlora with precision=bf16; stage 3 would round the codes; choose precision=autocast, or ada",
        ),
        ("attention=flash", "attention='flash'; not a known kind; choose from naive, sdpa, tiles"),
        ("attention=tiles cp=2", "attention=tiles with cp=2; context= says how ranks attend to each other's keys; lea"),
        ("optimizer=adamw8bit tp=2", "optimizer=adamw8bit with tp=2; 256 moments in a row share a scale, and ranks wo"),
        ("optimizer=adamw8bit dp=2 zero_stage=1", "optimizer=adamw8bit with zero_stage=1; 256 moments in a row "),
        ("precision=float8", "precision='float8'; not a known kind; choose from fp32, fp64, bf16, autocast, fp16, p"),
        ("precision=bf16 dp=2 zero_stage=2", "precision=bf16 with zero_stage=2; its weights are short while they are"),
        ("precision=fp16 tp=2", "precision=fp16 with tp=2; layers that are cut multiply by themselves, in the dtype "),
        ("dtype=float64", "dtype=float64; a training run has no 'dtype'; choose from model, dp, pp, tp"),
    ],
)
def test_what_train_refuses(given, said):
    with pytest.raises(ValueError) as caught:
        read_train(given.split())
    assert str(caught.value).startswith(f"train: {said}") and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            "model=llama3_1_8b recompute=[groups:2,layers]",
            "recompute=[groups:2,layers]; a plan has groups of one size; ask for one size",
        ),
        ("model=llama3_1_8b adapter=qlora tp=[1,2]", "adapter=qlora with tp=[1,2]; 64 weights in a row share a scale,"),
    ],
)
def test_what_plan_refuses(given, said):
    with pytest.raises(ValueError) as caught:
        read_plan(["cluster=dgx_h100", *given.split()])
    assert str(caught.value).startswith(f"plan: {said}")


def counted(*words):
    """The bytes that doctor counts of a run, its norms as a CPU computes them."""
    return gpu_memory(replace(asked_of(read_train([*SMALL, *words])).counted, fused_norms=False))


def held(*words):
    """What autograd keeps of a step of the same run."""
    run = read_train([*SMALL, *words])
    trainer, _ = train_run.begun(run, torch.device("cpu"))
    inputs, targets = torch.zeros(2, 4, 32, dtype=torch.int64).unbind()
    inputs, targets = inputs.clone(), targets.clone()  # no views, which keep each other
    return saved_bytes(trainer.model, lambda: trainer.engine.ends.loss(trainer.model(inputs), targets))


@pytest.mark.parametrize("model", ["tiny_llama", "tiny_gpt"])
def test_doctor_counts_each_attention_to_the_byte(model):
    plain = f"model={model}"
    for attention in ("naive", "tiles"):
        more = held(plain, f"attention={attention}") - held(plain)
        assert counted(plain, f"attention={attention}").activations - counted(plain).activations == more
        assert (more > 0) == (attention == "naive")


@pytest.mark.parametrize("adapter", ["adapter=lora", "adapter=ia3", "adapter=qlora rank=4"])
@pytest.mark.parametrize("also", [[], ["recompute=layers"]], ids=str)
def test_doctor_counts_each_adapter_to_the_byte(adapter, also):
    """What lasts, and what forward keeps; of recomputed layers that is as much as without adapters."""
    words = adapter.split()
    found, plain = counted(*words, *also), counted(*also)
    run = read_train([*SMALL, *words])
    trainer, _ = train_run.begun(run, torch.device("cpu"))
    trained = sum(p.nbytes for p in trainer.model.parameters() if p.requires_grad)
    assert (found.weights, found.gradients, found.optimizer) == (
        sum(p.nbytes for p in trainer.model.parameters()),
        trained,
        2 * trained,
    )
    kept = held(*words, *also) - held(*also)
    if also:
        assert found.head - plain.head == kept
    else:
        assert found.activations + found.head - plain.activations - plain.head == kept


@pytest.mark.parametrize("adapter", ["adapter=lora rank=16", "adapter=qlora", "adapter=ia3"])
def test_plan_and_sweep_count_what_doctor_counts(adapter):
    words = ["model=llama3_1_8b", "sequence=2048", "recompute=layers", "loss_chunks=16", *adapter.split()]
    run = read_train([*words, "batch=8", "dp=8", "zero_stage=3"], lambda ranks: None)
    wanted = gpu_memory(asked_of(run).counted).total
    shared = [*words, "convention=fp32", "stack=eager", "compute_dtype=fp32", "tp=1", "pp=1", "cp=1"]
    swept = read_sweep([*shared, "gpus=8", "global_batch=8", "zero_stages=3", "microbatches=1"])
    (row,) = explore(swept.model, swept.exploration, swept.grid)
    assert row.total_memory_gb * GiB == pytest.approx(wanted, rel=1e-12)
    plan = read_plan([*shared, "cluster=dgx_h100", "batch=8", "micro_batch=1", "zero_stage=3", "schedule=1f1b"])
    assert float(search(plan.job, plan.space).memory_bytes[0]) == pytest.approx(wanted, rel=1e-9)
