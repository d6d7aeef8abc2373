"""Ways to keep fewer bytes on one device; whoever shares a model among ranks finds it as they leave it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from course_lib.door import listed_names

if TYPE_CHECKING:
    from course_lib.savers.absmax import absmax_int8
    from course_lib.savers.adam8bit import AdamW8bit
    from course_lib.savers.checkpointing import checkpoint_layers
    from course_lib.savers.chunked_loss import ChunkedLoss
    from course_lib.savers.ia3 import add_ia3
    from course_lib.savers.lora import LoRALinear, add_lora
    from course_lib.savers.loss_scaler import LossScaler
    from course_lib.savers.nf4 import encode_nf4, nf4_levels
    from course_lib.savers.quantised_linear import quantise
    from course_lib.savers.rounding import Bf16Weights, rounded_by_chance
    from course_lib.savers.tiled_attention import attention_with_scores
else:
    __getattr__, __dir__ = listed_names(__name__)
