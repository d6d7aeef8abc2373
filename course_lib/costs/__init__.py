"""What training costs, by formula: torch-free, and independent of the code that trains and communicates."""

from __future__ import annotations

from course_lib.costs.activations import (
    Saved,
    checkpointed_activations,
    head_activations,
    is_llama,
    layer_activations,
)
from course_lib.costs.bounds import (
    bandwidth_bound_s,
    bandwidth_limit_s,
    gloo_all_reduce_s,
    latency_bound_s,
    least_bytes,
)
from course_lib.costs.comm_time import ALGORITHMS, comm_time
from course_lib.costs.conventions import CONVENTIONS, Convention, find_convention
from course_lib.costs.explorer import (
    STRATEGIES,
    ExplorerMemory,
    bytes_per_parameter,
    explorer_activation_bytes,
    explorer_layer_bytes,
    explorer_memory,
    explorer_parameters,
    explorer_state_bytes,
)
from course_lib.costs.fit import Fit, fit_alpha_beta
from course_lib.costs.gpu_memory import GpuMemory, Work, gpu_memory, in_flight, layer_bytes
from course_lib.costs.memory import (
    RankParameters,
    StateBytes,
    gpus_needed,
    model_state_bytes,
    rank_layer_parameters,
    rank_outer_parameters,
    rank_parameters,
    state_bytes,
)
from course_lib.costs.messages import Message, layer_messages
from course_lib.costs.parameters import (
    PARTS,
    Part,
    Weight,
    active_parameters,
    expert_parameters,
    layer_parameters,
    layer_weights,
    model_parameters,
    outer_weights,
    parameters_by_part,
)
from course_lib.costs.published import PARAMETER_FORMULAS, megatron_parameters, workshop_parameters
from course_lib.costs.published_activations import (
    interleaving_memory,
    korthikanti_first_stage_bytes,
    korthikanti_layer_bytes,
    workshop_activations,
)
from course_lib.costs.sweep import SweepPoint
from course_lib.costs.traffic import CommTime, Step, split_sizes

__all__ = [
    "ALGORITHMS",
    "CONVENTIONS",
    "PARAMETER_FORMULAS",
    "PARTS",
    "STRATEGIES",
    "CommTime",
    "Convention",
    "ExplorerMemory",
    "Fit",
    "GpuMemory",
    "Message",
    "Part",
    "RankParameters",
    "Saved",
    "StateBytes",
    "Step",
    "SweepPoint",
    "Weight",
    "Work",
    "active_parameters",
    "bandwidth_bound_s",
    "bandwidth_limit_s",
    "bytes_per_parameter",
    "checkpointed_activations",
    "comm_time",
    "expert_parameters",
    "explorer_activation_bytes",
    "explorer_layer_bytes",
    "explorer_memory",
    "explorer_parameters",
    "explorer_state_bytes",
    "find_convention",
    "fit_alpha_beta",
    "gloo_all_reduce_s",
    "gpu_memory",
    "gpus_needed",
    "head_activations",
    "in_flight",
    "interleaving_memory",
    "is_llama",
    "korthikanti_first_stage_bytes",
    "korthikanti_layer_bytes",
    "latency_bound_s",
    "layer_activations",
    "layer_bytes",
    "layer_messages",
    "layer_parameters",
    "layer_weights",
    "least_bytes",
    "megatron_parameters",
    "model_parameters",
    "model_state_bytes",
    "outer_weights",
    "parameters_by_part",
    "rank_layer_parameters",
    "rank_outer_parameters",
    "rank_parameters",
    "split_sizes",
    "state_bytes",
    "workshop_activations",
    "workshop_parameters",
]
