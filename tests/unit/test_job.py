"""What a job can say beside its layout, and that each of it counts."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import transformers

from course_lib.cli.main import main
from course_lib.config import LLAMA_3_1_8B, ParallelConfig, load_model
from course_lib.costs import convention_in, find_convention, gpu_memory, state_bytes, with_optimizer
from course_lib.costs.model.states import layers_of_stage
from course_lib.costs.sweep.assumptions import job_fields
from course_lib.costs.sweep.job import Job
from course_lib.costs.sweep.software import Software
from course_lib.hardware import load_device
from course_lib.units import GB, GiB

JOB = Job(model=LLAMA_3_1_8B, sequence=4096, batch=8, parallel=ParallelConfig(dp=8, zero_stage=1))
P = 8_030_261_248


def test_eight_bit_moments_take_two_bytes_and_two_scales_for_each_256():
    plain, small = gpu_memory(JOB), gpu_memory(replace(JOB, optimizer="adamw8bit"))
    shard = -(-P // 8)
    assert plain.optimizer == 12 * shard
    assert small.optimizer == (4 + 2) * shard + 8 * -(-shard // 256)
    assert state_bytes(256, with_optimizer(find_convention("fp32"), "adamw8bit")).optimizer == 2 * 256 + 8
    assert gpu_memory(replace(JOB, optimizer="sgd")).optimizer == 4 * shard


def test_formats_say_each_part():
    own = convention_in(weights="bf16", gradients="bf16", master="none", moments="fp32")
    assert (own.weights, own.gradients, own.optimizer) == (2, 2, 8)
    assert own.bytes_per_parameter == 12 and "no second copy" in own.assumes
    megatron = convention_in(weights="bf16", gradients="fp32", master="fp32", moments="fp32")
    assert gpu_memory(replace(JOB, convention=megatron)) == gpu_memory(JOB)
    assert job_fields({"moments": "bf16"})["convention"].optimizer == 4 + 4


def test_what_is_in_the_hosts_memory_is_not_in_the_gpus():
    here, some, away = (gpu_memory(replace(JOB, offload=name)) for name in ("none", "optimizer", "all"))
    assert here.optimizer > 0 == some.optimizer and some.weights == here.weights
    assert away.weights == away.gradients == away.optimizer == 0 < away.activations == here.activations


def test_scores_logits_and_recompute_count():
    flash, scores = (gpu_memory(replace(JOB, software=Software(kernel=one))) for one in ("flash2", "scores"))
    assert scores.activations - flash.activations == 32 * (5 * 4096 - 4) * 4096 * 32  # in place of each row's sum
    four, eight = (gpu_memory(replace(JOB, logit_bytes=size)) for size in (4, 8))
    assert eight.head - four.head == 4 * 4096 * 128256
    sizes = [gpu_memory(replace(JOB, recompute=way)).activations for way in ("none", "half", "layers")]
    assert sizes == sorted(sizes, reverse=True)


def test_a_stage_between_may_be_the_fullest():
    """Where embedding and head stand for a layer each, the ends have one less."""
    model = replace(load_model("llama3_1_8b"), n_layers=30, vocab_size=1000)
    sizes = [sum(n for n, _ in layers_of_stage(model, 8, stage)) for stage in range(8)]
    assert sizes == [3, 4, 4, 4, 4, 4, 4, 3]
    job = replace(JOB, model=model, parallel=ParallelConfig(pp=8), batch=64, microbatch=1)
    assert gpu_memory(job) == gpu_memory(job, stage=1) != gpu_memory(job, stage=0)
    assert [sum(n for n, _ in layers_of_stage(replace(model, n_layers=9), 4, stage)) for stage in range(4)] == [
        3,
        2,
        2,
        2,
    ]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"optimizer": "lion"}, r"with_optimizer: optimizer='lion'; its states are not known; choose one of adamw, "),
        ({"recompute": "some"}, r"Job: recompute='some'; not a known way; choose one of none, "),
        ({"offload": "disk"}, r"Job: offload='disk'; not a known way; choose one of none, optimizer, all"),
        ({"convention": "mine"}, r"find_convention: name='mine'; nobody counts so; choose one of "),
        ({"batch": 0}, r"plan: batch=0; a step has sequences, and a sequence tokens; give batch >= 1"),
        ({"itemsize": 0}, r"plan: itemsize=0; it counts; give itemsize >= 1"),
    ],
)
def test_a_job_that_cannot_be_is_refused_in_four_parts(values, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        replace(JOB, **values)


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"stak": "eager"}, "job: stak='eager'; nothing is assumed under that name; choose from convention, "),
        ({"kernel": "flash9"}, "job: kernel='flash9'; not a known kind; choose one of flash1, "),
        ({"logits": 0}, "job: logits=0; it is a whole number; give logits >= 1"),
        ({"weights": "int4"}, "convention_in: weights='int4'; not a format; choose one of fp32, "),
    ],
)
def test_words_that_say_nothing_are_refused_in_four_parts(said, message):
    with pytest.raises(ValueError) as refused:
        job_fields(said)
    assert str(refused.value).startswith(message)


def test_heads_that_do_not_divide_are_refused():
    with pytest.raises(ValueError, match="ParallelConfig: tp=5; tp divides n_heads=32; "):
        gpu_memory(replace(JOB, parallel=ParallelConfig(tp=5)))
    with pytest.raises(ValueError, match="gpu_memory: Llama 3.1 8B; a model alone is no job; make a Job of it, "):
        gpu_memory(LLAMA_3_1_8B)
    with pytest.raises(ValueError, match="gpu_memory: stage=4, pp=4; stages count from 0; choose stage in 0..3"):
        gpu_memory(replace(JOB, parallel=ParallelConfig(pp=4)), stage=4)


def test_a_card_has_one_size_with_its_source():
    h100 = load_device("h100_sxm_80")
    assert h100.usable_bytes == int(79.1 * GiB) and "Automodel pull request 2673" in h100.usable_in_words
    unseen = load_device("l40s_48")
    assert unseen.usable_bytes == 48 * GB and "no log was read" in unseen.usable_in_words


def test_a_folder_is_a_model_of_a_row_too(tmp_path):
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
    transformers.LlamaConfig(**sizes, num_key_value_heads=2, vocab_size=256).save_pretrained(tmp_path / "mine")
    row = {
        "model": {"folder": str(tmp_path / "mine")},
        "hardware": {"gpu": "H100-80GB", "gpus": 8, "gpus_per_node": 8},
        "parallel": {"tp": 1, "pp": 1, "sharding": "ZeRO-3"},
        "batch": {"micro": 1, "global": 8, "seq": 128},
        "recompute": "none",
    }
    (tmp_path / "runs.json").write_text(json.dumps([row]))
    assert main(["predict", f"runs={tmp_path / 'runs.json'}", f"out={tmp_path / 'out.csv'}"]) == 0
    assert ",yes," in (tmp_path / "out.csv").read_text()
