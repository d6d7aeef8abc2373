"""What describes a run: the model, how it is trained, and how it is spread over GPUs.

The course's letters, used in every shape comment and formula:
    B  batch (sequences)    S  sequence length (tokens)    H  hidden size
    A  attention heads      L  decoder layers              V  vocabulary size
"""

from __future__ import annotations

from course_lib.config.model import ModelConfig
from course_lib.config.parallel import ParallelConfig
from course_lib.config.presets import LLAMA_3_1_8B, ModelPreset, load_model, load_preset, model_names, parse_model
from course_lib.config.training import TrainConfig
