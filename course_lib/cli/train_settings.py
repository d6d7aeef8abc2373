"""What `train` can be told; `doctor` and `slurm` take the same."""

from __future__ import annotations

from typing import get_args

from course_lib import presets
from course_lib.cli.settings import Group, Setting
from course_lib.config.training import Optimizer
from course_lib.costs.comm.tensor import SequenceParallel
from course_lib.costs.sweep.assumptions import ADAPTERS as KINDS_OF_ADAPTERS
from course_lib.schedules import SCHEDULES
from course_lib.sequence_cut import ContextMethod, Order

MODELS = (*presets.names("tiny"), *presets.names("model"))

_KEPT = get_args(SequenceParallel)
_PRECISIONS = ("fp32", "fp64", "bf16", "autocast", "fp16", "pure_bf16")
_AGAIN = ("none", "layers", "groups:2", "selective")  # or another number
_STRATEGIES = ("NO_SHARD", "SHARD_GRAD_OP", "FULL_SHARD", "HYBRID_SHARD")
_LOSSY = ("top_k:0.01", "rand_k:0.01", "sign", "qsgd:16", "power_sgd:4", "double_squeeze:0.01", "ef21:0.01")
_TOPOLOGIES = ("ring", "grid", "torus", "static_exponential", "one_peer_exponential", "complete")
_POLICIES = ("by_block", "by_block_and_size", "by_block_group", "size_based")

RANKS = Group(
    "the model, and dp x pp x cp x tp ranks that train it",
    (
        Setting("model", "tiny_llama", "preset", "a preset, or a folder of Hugging Face", "01", MODELS),
        Setting("dp", 1, "positive", "copies of the model, each with its share of a batch", "03", free=True),
        Setting("pp", 1, "positive", "stages that each copy is cut into", "04", free=True),
        Setting("tp", 1, "positive", "ranks that share each matrix", "05", free=True),
        Setting("cp", 1, "positive", "ranks that share each sequence", "09", free=True),
        Setting("ep", 1, "positive", "of the dp copies, ranks that share a layer's experts", "09", free=True),
        Setting("engine", "own", "choice", "the course's code, or PyTorch's", "03", ("own", "torch"), free=True),
    ),
)
SHARDING = Group(
    "what the copies along dp share",
    (
        Setting("zero_stage", 0, "whole", "1 states, 2 and gradients, 3 and weights", "06", ("0", "1", "2", "3"), True),
        Setting("strategy", None, "word", "how stage 3 shares; without it FULL_SHARD", "06", _STRATEGIES, free=True),
        Setting("shards", None, "whole", "ranks that share one copy, for HYBRID_SHARD", "06", free=True),
        Setting("offload", None, "word", "where stage 3 keeps its pieces: in main memory", "06", ("cpu",), True),
        Setting("policy", None, "word", "what is gathered together; without it by_block", "06", _POLICIES, free=True),
        Setting("policy_size", None, "whole", "blocks of a group, or parameters of a unit", "06", free=True),
    ),
)
PIPELINE = Group(
    "a pipeline, with pp above 1",
    (
        Setting("schedule", None, "word", "the order of its work; without it 1f1b", "04", SCHEDULES, True),
        Setting("microbatches", None, "whole", "parts of each copy's share of a batch; without it pp", "04", free=True),
        Setting("stages_per_rank", None, "whole", "above 1 for interleaved, which takes 2 by itself", "04", free=True),
    ),
)
LESS = Group(
    "what copies along dp may lose on their way to each other",
    (
        Setting("across", 1, "positive", "clusters of copies: exact inside, and what follows between them", "10"),
        Setting("lossy", None, "other", "what gradients lose: a word and its numbers", "10", _LOSSY),
        Setting("local", None, "positive", "updates after which copies take the mean of their weights", "10"),
        Setting("outer", None, "other", "of local: a step towards that mean, rate:momentum", "10"),
        Setting("gossip", None, "word", "after each update copies meet some others", "10", _TOPOLOGIES),
    ),
)
CONTEXT = Group(
    "ranks that share each sequence, with cp above 1",
    (
        Setting(
            "context",
            None,
            "word",
            "how attention meets keys; without it all_gather",
            "09",
            get_args(ContextMethod),
            True,
        ),
        Setting("order", None, "word", "who has which positions; without it zigzag", "09", get_args(Order), True),
    ),
)
EXPERTS = Group(
    "a model with experts",
    (
        Setting("balance", 0.0, "number", "so many times the load-balance loss is added", "09"),
        Setting("capacity", None, "number", "tokens that an expert takes, in fair shares of a sequence", "09"),
    ),
)
ACTIVATIONS = Group(
    "what layers keep until backward",
    (
        Setting("sequence_parallel", None, "choice", "along tp: a block's input, or a piece", "05", _KEPT, True),
        Setting("recompute", "none", "other", "what layers compute twice: all, but their input", "01", _AGAIN, True),
        Setting("attention", "sdpa", "choice", "how scores are made", "11", ("naive", "sdpa", "tiles"), True),
        Setting("loss_chunks", 1, "positive", "parts of a micro-batch whose logits exist at a time", "11", free=True),
    ),
)
ADAPTERS = Group(
    "what is trained beside a frozen model",
    (
        Setting("adapter", None, "choice", "without it all weights are trained", "11", KINDS_OF_ADAPTERS),
        Setting("rank", None, "positive", "of LoRA's two matrices; without it 8", "11"),
    ),
)
STEPS = Group(
    "steps, and what they read",
    (
        Setting("steps", 20, "positive", "how many in all; a run that has ended goes on with more", "03"),
        Setting("batch", 16, "positive", "sequences of a step, on all ranks together", "03"),
        Setting("sequence", 64, "positive", "tokens of each", "03"),
        Setting("accumulation", 1, "whole", "parts of a rank's share, one after the other", "06", free=True),
        Setting("text", None, "other", "a file to train on; without it the course's text", "00"),
        Setting("seed", 0, "whole", "decides the first weights and the order of the batches", "00"),
    ),
)
OPTIMIZER = Group(
    "the optimizer, and its numbers",
    (
        Setting("optimizer", "adamw", "word", "what moves the weights", "03", get_args(Optimizer)),
        Setting("lr", 0.003, "number", "the learning rate at its highest", "03"),
        Setting("lr_schedule", "constant", "word", "how it goes on from there", "03", ("constant", "cosine")),
        Setting("warmup_steps", 0, "whole", "steps in which it rises first", "03"),
        Setting("weight_decay", 0.0, "number", "how much of each weight a step takes away, times lr", "03"),
        Setting("max_norm", None, "number", "the norm that gradients are scaled down to", "03"),
        Setting("precision", "fp32", "choice", "of what lasts, and of what is computed", "01", _PRECISIONS),
    ),
)
RESULTS = Group(
    "what is left of it",
    (
        Setting("out", None, "other", "a folder for losses, configuration and checkpoints", "03", free=True),
        Setting("checkpoint_every", "10min", "other", "so many steps, or minutes; null: at the end", "03", free=True),
        Setting("keep_checkpoints", 2, "positive", "so many stay; the ones before them are removed", "03", free=True),
    ),
)
TRAIN = (RANKS, SHARDING, LESS, PIPELINE, CONTEXT, EXPERTS, ADAPTERS, ACTIVATIONS, STEPS, OPTIMIZER, RESULTS)
