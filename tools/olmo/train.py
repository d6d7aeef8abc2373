"""The smallest OLMo 2 of `ai2-olmo-core` on CPUs; torchrun starts it, in that package's environment.

`train.py KIND WRAPPING FOLDER LAST_STEP mended|as_released`, and rank 0's last line is JSON.
"""

import json
import logging
import sys
import time
from pathlib import Path

import numpy
import torch
import torch.distributed as dist
from olmo_core.config import DType
from olmo_core.data import NumpyDataLoaderConfig, NumpyFSLDatasetConfig, TokenizerConfig
from olmo_core.distributed.parallel import DataParallelType
from olmo_core.nn.transformer import TransformerConfig
from olmo_core.nn.transformer.config import TransformerDataParallelWrappingStrategy as Wrapping
from olmo_core.optim import AdamWConfig, CosWithWarmup
from olmo_core.train import Duration, TrainerConfig, prepare_training_environment, teardown_training_environment
from olmo_core.train.callbacks import Callback, CheckpointerCallback
from olmo_core.train.train_module import TransformerDataParallelConfig, TransformerTrainModuleConfig
from torch.distributed.fsdp import FSDPModule

STEPS, SAVED_EVERY = 10, 5
SEQUENCE, BATCH, MICROBATCH = 64, 8, 2  # tokens; sequences of all ranks; of one rank at a time
VOCABULARY = TokenizerConfig(vocab_size=256, eos_token_id=255, pad_token_id=255)


class Losses(Callback):
    """The first report of each step; a later one of the same step has other metrics, and 0 for those it lacks."""

    seen = {}

    def log_metrics(self, step, metrics):
        self.seen.setdefault(step, metrics.get("train/CE loss"))


def main(kind, wrapping, folder, last_step, metrics):
    """Train up to a step, from the checkpoint in `folder` if there is one."""
    torch.set_num_threads(1)
    prepare_training_environment(backend="cpu:gloo", seed=0)
    logging.disable(logging.INFO)
    module = train_module(kind, wrapping)
    trainer = make_trainer(module, Path(folder), int(last_step))
    if metrics == "mended":
        leave_out_save_time(trainer)
    trainer.maybe_load_checkpoint()
    first, begin = trainer.global_step + 1, time.monotonic()
    trainer.fit()
    if dist.get_rank() == 0:
        units = sum(isinstance(part, FSDPModule) for part in module.model.modules())
        losses = [Losses.seen[step] for step in range(first, int(last_step) + 1)]
        print(json.dumps({"first": first, "losses": losses, "units": units, "fit_s": time.monotonic() - begin}))
    teardown_training_environment()


def leave_out_save_time(trainer):
    """A checkpoint's seconds are no metric any more.

    Each rank adds them when its own thread has ended, in another step than its neighbour's, so that lists of unlike
    lengths are added up, and both wait for ever. Source: allenai/OLMo-core, pull request 831, open in August 2026.
    """
    record = trainer.record_metric

    def chosen(name, *values, **options):
        if name != "checkpoint/save_async_duration_s":
            record(name, *values, **options)

    trainer.record_metric = chosen


def train_module(kind, wrapping):
    """The model under DDP, FSDP or HSDP; `none` is one rank without any of them."""
    parallel = None
    if kind != "none":
        parallel = TransformerDataParallelConfig(
            name=DataParallelType(kind),
            reduce_dtype=DType.float32,
            wrapping_strategy=Wrapping(wrapping),
            num_replicas=2 if kind == "hsdp" else None,
        )
    config = TransformerTrainModuleConfig(
        rank_microbatch_size=MICROBATCH * SEQUENCE,
        max_sequence_length=SEQUENCE,
        optim=AdamWConfig(lr=1e-3, fused=False),
        compile_model=False,
        dp_config=parallel,
        max_grad_norm=1.0,
        scheduler=CosWithWarmup(warmup_steps=2),
    )
    return config.build(TransformerConfig.olmo2_1M(vocab_size=256).build(init_device="meta"))


def make_trainer(module, folder, last_step):
    """Ten steps are planned, of which a run may stop earlier; a checkpoint is written while training goes on."""
    tokens = folder.parent / "tokens.npy"  # numbers without a header, as in the workshop's files
    if not tokens.exists() and dist.get_rank() == 0:
        numpy.random.default_rng(0).integers(0, 250, 200_000).astype(numpy.uint16).tofile(tokens)
    dist.barrier()
    work = str(folder.parent / "cache")
    texts = NumpyFSLDatasetConfig(paths=[str(tokens)], sequence_length=SEQUENCE, tokenizer=VOCABULARY, work_dir=work)
    loading = NumpyDataLoaderConfig(global_batch_size=BATCH * SEQUENCE, seed=0, num_workers=0)
    loader = loading.build(texts.build(), dp_process_group=module.dp_process_group)
    config = TrainerConfig(
        save_folder=str(folder),
        metrics_collect_interval=1,
        cancel_check_interval=1,
        max_duration=Duration.steps(STEPS),
        hard_stop=Duration.steps(last_step),
    )
    saving = CheckpointerCallback(save_interval=SAVED_EVERY, save_async=True)
    return config.with_callback("checkpointer", saving).with_callback("losses", Losses()).build(module, loader)


main(*sys.argv[1:])
