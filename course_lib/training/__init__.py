"""Text, batches, the training step, and the trainer that techniques are applied to.

Everything that a training needs is found here: `from course_lib.training import Trainer, make_mesh, fully_shard`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from course_lib.door import listed_names

if TYPE_CHECKING:
    from course_lib.config import LLAMA_3_1_8B, ModelConfig, ParallelConfig, TrainConfig, load_model
    from course_lib.models.decoder import Decoder
    from course_lib.models.mlp import MLP
    from course_lib.models.moe import MoEDecoder
    from course_lib.parallel.table.mesh import make_mesh
    from course_lib.schedules import make_schedule
    from course_lib.training.balance import balanced
    from course_lib.training.batches import Batch, Batches
    from course_lib.training.context_technique import context
    from course_lib.training.expert_technique import experts
    from course_lib.training.gossip_technique import gossip
    from course_lib.training.local_technique import Nesterov, local
    from course_lib.training.loss_technique import chunked_loss
    from course_lib.training.lossy_technique import (
        double_squeeze,
        ef21,
        error_feedback,
        neolithic,
        power_sgd,
        without_memory,
    )
    from course_lib.training.mean_weights import at_the_mean
    from course_lib.training.pacing import pace
    from course_lib.training.recompute_technique import recompute
    from course_lib.training.sampler import DistributedSampler
    from course_lib.training.sharded_checkpoint import load_pieces, save_pieces
    from course_lib.training.sharding import fully_shard, zero
    from course_lib.training.techniques import replicate, stages
    from course_lib.training.tensor_technique import tensor
    from course_lib.training.text import load_text
    from course_lib.training.tokenizer import load_tokens
    from course_lib.training.trainer import Trainer
else:
    __getattr__, __dir__ = listed_names(__name__)
