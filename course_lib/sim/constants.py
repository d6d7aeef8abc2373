"""The fitted constants, which one applies where, and the rates that follow from them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from course_lib.costs.sweep.job import Job
from course_lib.costs.sweep.software import Software
from course_lib.errors import four_parts
from course_lib.sim.machine import Machine, machine_of
from course_lib.sim.policies import Value
from course_lib.sim.priors import OF_STACKS, PRIORS, STACKS
from course_lib.sim.rates import Rates

_FILE = Path(__file__).parent / "data" / "constants.json"
_BY_KIND = ("pointwise", "microbatch_ms", "layer_us", "accumulated")
_SAME = tuple(name for name in PRIORS if "." not in name)  # whatever the GPU and the stack
_AS_THEY_ARE = (  # shares, factors and lengths, which are rates' own fields
    *("odd_width", "attention_knee", "small_head", "odd_head"),
    *("tp_exposed", "cp_exposed", "dp_exposed", "pp_exposed", "node_slowdown"),
)
_SCORE_BYTES = 10.0  # five passes of 2-byte scores: masked, soft-maxed, dropped, read again
_WELL_TUNED = {  # the stack of each kind that stands for it where nobody says which
    "eager": "torch eager",
    "compiled": "torch compiled",
    "megatron": "nemo",
    "legacy": "megatron 2021",
}
_HOST_BYTES_PER_S = 20e9  # PCIe 4 x16 reaches about 25 GB/s, and a GPU's share of the host's memory is of the same size


@dataclass(frozen=True, kw_only=True)
class Constants:
    """Positive numbers by name, as `matmul.A100`, and the factors within which 80 % of left-out steps lay.

    The factors, low and high, go by what is known of the stack: `known` was fitted, of `kind` its kind alone is known,
    `unknown` has nobody fitted. A layout may be `near` to a published one or `far` from all (`sim.nearest`).
    """

    values: Mapping[str, float]
    near: Mapping[str, tuple[float, float]]
    far: Mapping[str, tuple[float, float]]
    memory: tuple[float, float]  # of log(measured/predicted peak) the median and the standard deviation
    fitted_on: str = ""

    def interval(self, stack: str | None, *, is_far: bool) -> tuple[float, float]:
        """The factors on a predicted step time for a stack by name, or for None as `Software` has it."""
        by_kind = self.far if is_far else self.near
        if stack is None:
            return by_kind["kind"]
        return by_kind["known" if stack in STACKS else "unknown"]


@cache
def load_constants() -> Constants:
    """The committed constants, made by `python -m course_lib calibrate`."""
    found = json.loads(_FILE.read_text(encoding="utf-8"))
    return Constants(
        values=found["values"],
        near={kind: tuple(ends) for kind, ends in found["near"].items()},
        far={kind: tuple(ends) for kind, ends in found["far"].items()},
        memory=tuple(found["memory"]),
        fitted_on=found["fitted_on"],
    )


def constant_names(generation: str, software: Software) -> dict[str, str]:
    """Which constant gives each coefficient, for a GPU generation and a stack.

    A stack without a name has what the best known one of its kind has; one that nobody fitted, what is fitted for such.
    Raises: ValueError for FP8 on a generation of which no published run used it.
    """
    if software.fp8 and f"matmul_fp8.{generation}" not in PRIORS:
        rule, way_out = "no published run has computed so there", "choose bf16, or an H100 or later"
        raise ValueError(four_parts("sim", f"FP8 on {generation}", rule, way_out))
    fp8 = "_fp8" if software.fp8 else ""
    stack = software.stack or _WELL_TUNED[software.kind]
    return {
        "matmul": f"matmul{fp8}.{generation}",
        "head_matmul": f"matmul.{generation}",
        "attention": f"attention.{generation}",
        "kernel": f"kernel.{software.timed_kernel}",
        **{name: f"{name}.{software.kind}" for name in _BY_KIND},
        **{name: f"{name}.{stack}" for name in OF_STACKS},
        **{name: name for name in _SAME},
    }


def rates_for(job: Job) -> Rates:
    """The rates of a job's cluster and software.

    Raises: ValueError for a device without constants.
    """
    return rates_of(machine_of(job.cluster), job.software, fused_norms=job.fused_norms)


def rates_of(machine: Machine, software: Software, *, fused_norms: bool = True) -> Rates:
    """The rates of one machine and stack; `fused_norms` as in `Job`."""
    values = load_constants().values
    names = constant_names(machine.generation, software)
    coefficients = {name: values[constant] for name, constant in names.items()}
    return rates_from(
        machine,
        coefficients,
        fp8=float(software.fp8),
        keeps_scores=float(software.timed_kernel == "scores"),
        gradient_bytes=float(software.gradient_bytes),
        plain_norms=float(not fused_norms),
    )


def rates_from(
    machine: Machine,
    c: Mapping[str, Value],
    *,
    fp8: Value,
    keeps_scores: Value,
    gradient_bytes: Value,
    plain_norms: Value = 0.0,
) -> Rates:
    """Rates from coefficients by name; numbers, or arrays with one for each policy.

    A stack's own factor is on all that runs: what it does not fuse, overlap or tune is in no formula.
    """
    slow = c["stack"]
    half = machine.bf16_flops_per_s / slow
    peak = fp8 * machine.fp8_flops_per_s / slow + (1 - fp8) * half
    memory = machine.memory_bytes_per_s / slow
    pointwise = memory / c["pointwise"]
    return Rates(
        matmul_flops_per_s=c["matmul"] * peak,
        head_flops_per_s=c["head_matmul"] * half,
        size_penalty=c["size_penalty"] * peak / memory,
        attention_flops_per_s=c["attention"] * c["kernel"] * half,
        keeps_scores=keeps_scores,
        score_s=_SCORE_BYTES / pointwise,
        pointwise_bytes_per_s=pointwise,
        norm_numbers=c["plain_norms"] * plain_norms,
        cast_bytes=c["casts"] * fp8,
        gradient_bytes=gradient_bytes,
        **{name: c[name] for name in _AS_THEY_ARE},
        inside_bytes_per_s=c["inside"] * machine.inside_bytes_per_s / slow,
        pair_bytes_per_s=c["inside"] * machine.pair_bytes_per_s / slow,
        between_bytes_per_s=c["between"] * machine.between_bytes_per_s / slow,
        domain=machine.domain,
        inside_alpha_s=machine.inside_alpha_s * slow,
        ring_alpha_s=1e-6 * c["ring_us"] * slow,
        optimizer_bytes_per_s=c["optimizer"] * memory,
        host_bytes_per_s=_HOST_BYTES_PER_S / slow,
        accumulated_s=c["accumulated"] / memory,
        layer_s=1e-6 * c["layer_us"] * slow,
        expert_layer_s=1e-6 * c["expert_us"] * slow,
        step_s=1e-3 * c["step_ms"] * slow,
        microbatch_s=1e-3 * c["microbatch_ms"] * slow,
        peak_flops_per_s=machine.bf16_flops_per_s,
    )
