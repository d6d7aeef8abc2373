"""The fitted constants, which one applies where, and the rates that follow from them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from course_lib.costs.sweep.software import DEEPSPEED, UNKNOWN, Software
from course_lib.sim.machine import Machine
from course_lib.sim.policies import Value
from course_lib.sim.rates import Rates

_FILE = Path(__file__).parent / "data" / "constants.json"
_SCORE_BYTES = 10.0  # five passes of 2-byte scores: masked, soft-maxed, dropped, read again
_HOST_BYTES_PER_S = 20e9  # PCIe 4 x16 reaches about 25 GB/s, and a GPU's share of the host's memory is of the same size


@dataclass(frozen=True, kw_only=True)
class Constants:
    """Positive numbers by name, as `matmul.A100`, and the factors within which 80 % of left-out steps lay."""

    values: Mapping[str, float]
    known: tuple[float, float]  # low and high: of stacks that were fitted
    unknown: tuple[float, float]  # of others
    fitted_on: str = ""

    def knows(self, stack: str | None) -> bool:
        """Whether a stack of this name was fitted."""
        return f"stack.{stack}" in self.values

    def interval(self, stack: str | None) -> tuple[float, float]:
        """The factors on a predicted step time for a stack by name."""
        return self.known if self.knows(stack) else self.unknown


@cache
def load_constants() -> Constants:
    """The committed constants, made by `python -m course_lib calibrate`."""
    found = json.loads(_FILE.read_text(encoding="utf-8"))
    return Constants(
        values=found["values"],
        known=tuple(found["known"]),
        unknown=tuple(found["unknown"]),
        fitted_on=found["fitted_on"],
    )


def constant_names(generation: str, software: Software) -> dict[str, str]:
    """Which constant gives each coefficient, for a GPU generation and a stack; one that has no value is 1.

    So all messages of tensor parallelism count where nobody knows the stack: only tuned ones hide some of them.
    And all that DeepSpeed gathers: of its ZeRO-3 hardly anything was hidden where it was measured.
    """
    fp8 = "_fp8" if software.fp8 else ""
    hides_tp = software.kind if software.stack not in (UNKNOWN, DEEPSPEED) else "nobody"
    hides_dp = software.kind if software.stack != DEEPSPEED else "nobody"
    by_kind = ("pointwise", "microbatch_ms")
    same = ("size_penalty", "attention_knee", "small_head", "casts", "cp_exposed", "pp_exposed", "inside", "between")
    once = ("ring_us", "optimizer", "expert_us", "step_ms", "node_slowdown")
    return {
        "matmul": f"matmul{fp8}.{generation}",
        "head_matmul": f"matmul.{generation}",
        "attention": f"attention.{generation}",
        "kernel": f"kernel.{software.timed_kernel}",
        **{name: f"{name}.{software.kind}" for name in by_kind},
        "tp_exposed": f"tp_exposed.{hides_tp}",
        "dp_exposed": f"dp_exposed.{hides_dp}",
        **{name: name for name in (*same, *once)},
        "stack": f"stack.{software.stack}",
    }


def rates_of(machine: Machine, software: Software) -> Rates:
    """The rates of one machine and stack; a stack that nobody has fitted has the factor 1."""
    values = load_constants().values
    names = constant_names(machine.generation, software)
    coefficients = {name: values.get(constant, 1.0) for name, constant in names.items()}
    return rates_from(
        machine,
        coefficients,
        fp8=float(software.fp8),
        keeps_scores=float(software.timed_kernel == "scores"),
        gradient_bytes=float(software.gradient_bytes),
    )


def rates_from(
    machine: Machine, c: Mapping[str, Value], *, fp8: Value, keeps_scores: Value, gradient_bytes: Value
) -> Rates:
    """Rates from coefficients by name; numbers, or arrays with one for each policy."""
    peak = fp8 * machine.fp8_flops_per_s + (1 - fp8) * machine.bf16_flops_per_s
    pointwise = machine.memory_bytes_per_s / c["pointwise"]
    return Rates(
        matmul_flops_per_s=c["matmul"] * peak,
        head_flops_per_s=c["head_matmul"] * machine.bf16_flops_per_s,
        size_penalty=c["size_penalty"] * peak / machine.memory_bytes_per_s,
        attention_flops_per_s=c["attention"] * c["kernel"] * machine.bf16_flops_per_s,
        attention_knee=c["attention_knee"],
        small_head=c["small_head"],
        keeps_scores=keeps_scores,
        score_s=_SCORE_BYTES / pointwise,
        pointwise_bytes_per_s=pointwise,
        cast_bytes=c["casts"] * fp8,
        tp_exposed=c["tp_exposed"],
        cp_exposed=c["cp_exposed"],
        dp_exposed=c["dp_exposed"],
        pp_exposed=c["pp_exposed"],
        gradient_bytes=gradient_bytes,
        inside_bytes_per_s=c["inside"] * machine.inside_bytes_per_s,
        pair_bytes_per_s=c["inside"] * machine.pair_bytes_per_s,
        between_bytes_per_s=c["between"] * machine.between_bytes_per_s,
        domain=machine.domain,
        inside_alpha_s=machine.inside_alpha_s,
        ring_alpha_s=1e-6 * c["ring_us"],
        optimizer_bytes_per_s=c["optimizer"] * machine.memory_bytes_per_s,
        host_bytes_per_s=_HOST_BYTES_PER_S,
        expert_layer_s=1e-6 * c["expert_us"],
        step_s=1e-3 * c["step_ms"],
        microbatch_s=1e-3 * c["microbatch_ms"],
        node_slowdown=c["node_slowdown"],
        stack=c["stack"],
        peak_flops_per_s=machine.bf16_flops_per_s,
    )
