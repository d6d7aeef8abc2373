"""What communication costs, by formula: torch-free, and independent of the code that communicates."""

from __future__ import annotations

from course_lib.costs.bounds import (
    bandwidth_bound_s,
    bandwidth_limit_s,
    gloo_all_reduce_s,
    latency_bound_s,
    least_bytes,
)
from course_lib.costs.comm_time import ALGORITHMS, comm_time
from course_lib.costs.fit import Fit, fit_alpha_beta
from course_lib.costs.messages import Message, layer_messages
from course_lib.costs.parameters import layer_parameters, model_parameters
from course_lib.costs.sweep import SweepPoint
from course_lib.costs.traffic import CommTime, Step, split_sizes

__all__ = [
    "ALGORITHMS",
    "CommTime",
    "Fit",
    "Message",
    "Step",
    "SweepPoint",
    "bandwidth_bound_s",
    "bandwidth_limit_s",
    "comm_time",
    "fit_alpha_beta",
    "gloo_all_reduce_s",
    "latency_bound_s",
    "layer_messages",
    "layer_parameters",
    "least_bytes",
    "model_parameters",
    "split_sizes",
]
