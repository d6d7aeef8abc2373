"""What autograd keeps is what `doctor`, `plan` and `sweep` count: with products in 16 bits, experts, adapters."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from course_lib.cli import train_run
from course_lib.cli.doctor import asked_of
from course_lib.cli.plan_config import read_plan
from course_lib.cli.sweep_config import read_sweep
from course_lib.cli.train_config import read_train
from course_lib.config import load_model
from course_lib.costs.model.adapters import Adapters
from course_lib.costs.sweep.explore import explore
from course_lib.costs.sweep.gpu_memory import gpu_memory, stage_pieces
from course_lib.gauges.allocated import allocated_bytes, saved_bytes
from course_lib.gauges.savers_on_gpu import recorded
from course_lib.planner.policy_search import search
from course_lib.units import GiB

SMALL = ["batch=4", "sequence=32"]
DIVISOR, LOSS = 4, 4  # bytes of what cross-entropy divides by, and of what it returns


def of_run(words):
    """A run's model, its forward pass with loss, and the job that doctor counts, as a CPU computes it."""
    run = read_train([*SMALL, *words.split()])
    trainer, _ = train_run.begun(run, torch.device("cpu"))
    inputs, targets = torch.zeros(2, 4, 32, dtype=torch.int64).unbind()
    inputs, targets = inputs.clone(), targets.clone()  # no views, which keep each other
    job = replace(asked_of(run).counted, fused_norms=False, logit_bytes=4)
    return trainer.model, lambda: trainer.engine.ends.loss(trainer.model(inputs), targets), job


@pytest.mark.parametrize(
    "words",
    [
        *(f"model=tiny_{name} precision=autocast" for name in ("llama", "gpt", "olmo")),
        "model=tiny_llama precision=fp16 attention=tiles",
        "model=tiny_gpt precision=fp32",
        "adapter=lora rank=4 precision=autocast",
        "adapter=qlora rank=4 precision=fp16",
        "adapter=ia3 precision=autocast",
        "model=tiny_mixtral precision=fp32",
        "model=tiny_mixtral precision=autocast",
        "model=tiny_mixtral adapter=lora precision=fp32",
        "model=tiny_mixtral adapter=lora precision=autocast",
        "model=tiny_gpt adapter=lora rank=3",
        "model=tiny_gpt adapter=ia3 precision=autocast",
        "model=tiny_olmo adapter=lora precision=autocast",
    ],
)
def test_autograd_keeps_what_is_counted_to_the_byte(words):
    model, forward, job = of_run(words)
    counted = gpu_memory(job)
    assert saved_bytes(model, forward) == counted.activations + counted.head + DIVISOR


@pytest.mark.parametrize(
    "words",
    [
        "precision=autocast recompute=layers",
        "precision=autocast recompute=groups:2",
        "precision=autocast recompute=selective",
        "model=tiny_mixtral recompute=selective",
        "model=tiny_mixtral recompute=selective precision=autocast",
        "model=tiny_olmo recompute=selective adapter=lora",
        "recompute=selective adapter=qlora precision=fp16",
    ],
)
def test_layers_that_compute_again_keep_inputs_and_results_of_products(words):
    """Of experts, too: which of them a token passes is not known before, but how many."""
    _, forward, job = of_run(words)
    pieces = stage_pieces(job, job.parallel, 0)
    products = pieces.products if "selective" in words else 0
    angles, given = 4 * 32 * job.model.head_size // 2, 8 * 4 * 32 * (1 + (job.adapters is None))
    numbers = 8 * 14 * (job.adapters is not None)  # the factor of each LoRA
    numbers += 2 * (8 + 4) * (job.model.n_experts > 1)  # how uneven each layer's load is, and what that is times
    kept = pieces.inputs + products + pieces.head + angles
    assert allocated_bytes(forward) + given == kept + DIVISOR + LOSS + numbers


def test_results_of_products_are_as_wide_as_these():
    _, _, job = of_run("precision=autocast recompute=selective")
    assert stage_pieces(job, job.parallel, 0).products == 2 * job.model.n_layers * 4 * 32 * (
        64 + 32 + 32 + 64 + 176 + 176 + 64
    )


def test_every_micro_batch_under_way_has_copies_of_all_matrices():
    """Which is why more of them, each of fewer tokens, keep more than one of all tokens."""
    _, forward, job = of_run("precision=autocast")
    kept = gpu_memory(job)
    assert allocated_bytes(lambda: [forward(), forward()]) == 2 * allocated_bytes(forward)
    half = gpu_memory(replace(job, microbatch=2))
    matrices = 2 * job.model.n_layers * (64 * (64 + 32 + 32 + 64) + 3 * 64 * 176)
    angles = 2 * job.model.n_layers * 4 * 32 * 16
    assert 2 * half.activations - kept.activations == matrices + angles


def test_scores_that_are_written_out_count_as_on_a_gpu():
    """Whose autocast computes a softmax in fp32, and so keeps four bytes more of each."""
    more = []
    for attention in ("sdpa", "naive"):
        model, forward, job = of_run(f"precision=autocast attention={attention}")
        more.append((gpu_memory(job).activations, saved_bytes(model, forward)))
    (plain, kept), (counted, found) = more
    assert counted - plain == found - kept + 4 * job.model.n_layers * 4 * 4 * 32**2


def test_of_few_tokens_more_is_kept_than_without():
    """Copies of matrices are as many for a short sequence as for a long one."""

    def kept(precision, sequence):
        words = ["model=llama3_2_1b", f"sequence={sequence}", "batch=1", f"precision={precision}"]
        memory = gpu_memory(asked_of(read_train(words)).counted)
        return memory.activations + memory.head

    assert kept("autocast", 1024) > kept("fp32", 1024) and kept("autocast", 4096) < kept("fp32", 4096)


@pytest.mark.parametrize("word", ["autocast", "fp16"])
def test_plan_and_sweep_count_what_doctor_counts(word):
    words = ["model=llama3_2_1b", "sequence=2048"]
    run = read_train([*words, f"precision={word}", "batch=8", "dp=8", "zero_stage=1"], lambda ranks: None)
    wanted = gpu_memory(asked_of(run).counted).total
    shared = [*words, "convention=fp32", "stack=eager", f"compute_dtype={word}", "tp=1", "pp=1", "cp=1"]
    swept = read_sweep([*shared, "gpus=8", "global_batch=8", "zero_stages=1", "microbatches=1"])
    (row,) = explore(swept.model, swept.exploration, swept.grid)
    assert row.total_memory_gb * GiB == pytest.approx(wanted, rel=1e-12)
    plan = read_plan([*shared, "cluster=dgx_h100", "batch=8", "micro_batch=1", "zero_stage=1", "schedule=1f1b"])
    assert float(search(plan.job, plan.space).memory_bytes[0]) == pytest.approx(wanted, rel=1e-9)


@pytest.mark.parametrize("adapter", ["", "adapter=lora"])
def test_a_loss_in_pieces_keeps_what_the_head_reads_be_it_frozen_or_not(adapter):
    """And after forward no logits; what is counted of these is one piece, which backward makes."""
    model, forward, job = of_run(f"loss_chunks=4 {adapter}")
    counted, piece = gpu_memory(job), 4 * 4 * 32 * 256 // 4
    assert abs(saved_bytes(model, forward) - (counted.activations + counted.head - piece)) <= 16  # a few numbers


def test_a_gpu_s_bills_of_lora_have_the_copies_of_a_and_b():
    """They ran under autocast, beside weights that are short already; a recipe's bill leaves these copies out.

    And it counts what a frozen head reads, which nobody keeps.
    """
    rows = [one for one in recorded() if one.recipe == "LoRA"]
    models = [load_model(one.model) for one in rows]
    copies = [2 * Adapters(rank=16).parameters(model) for model in models]
    head_inputs = [(2 * model.hidden_size + 8) * one.sequence for one, model in zip(rows, models, strict=True)]
    due = [one.formula + a - b for one, a, b in zip(rows, copies, head_inputs, strict=True)]
    assert [one.found.loss for one in rows] == pytest.approx(due, rel=1e-5) and len(rows) == 3
    assert max(abs(one.off) for one in rows) > 0.002
