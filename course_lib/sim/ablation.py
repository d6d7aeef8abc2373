"""What each term of the closed form is worth: the same fit and tests without it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from course_lib.sim.policies import RECOMPUTE, SCHEDULES
from course_lib.sim.priors import PRIORS
from course_lib.sim.runs import Run

_NOTHING = 1e-6  # constants are positive: as good as none
_ENDLESS = 10**9  # stages on a rank, of a pipeline that has no bubble


@dataclass(frozen=True, kw_only=True)
class Ablation:
    """A term's name, constants that are held at a value without effect, and how runs change."""

    name: str
    held: Mapping[str, float]
    change: Callable[[Run], Run] = lambda run: run

    def runs(self, runs: Sequence[Run]) -> list[Run]:
        """The runs without what the term needs to know."""
        return [self.change(run) for run in runs]


def ablations() -> tuple[Ablation, ...]:
    """Each term alone, then the small ones together, then all but matrix products."""
    small = ("size_penalty", "casts", "step_ms", "node_slowdown", "microbatch_ms")
    return (
        Ablation(name="recompute", held={}, change=_without_recompute),
        Ablation(name="tensor-parallel traffic", held=_all("tp_exposed", _NOTHING)),
        Ablation(name="attention's own rate", held=_attention_as_matmul()),
        Ablation(name="kind of software and kernel", held={}, change=_one_kind),
        Ablation(name="pipeline bubble", held={}, change=_without_bubble),
        Ablation(name="GPU generation", held={}, change=_one_generation),
        Ablation(name="pointwise traffic", held=_all("pointwise", 1e-3)),
        Ablation(name="stack's factor", held=_all("stack", 1.0)),
        Ablation(name="data-parallel traffic", held={"inside": 1e3, "between": 1e3, "ring_us": _NOTHING}),
        Ablation(name="size, casts, optimizer, fixed times", held=_small(small) | {"optimizer": 1e3}),
        Ablation(name="all but matrix products", held=_only_products(small), change=_one_kind_and_generation),
    )


def _all(prefix: str, value: float) -> dict[str, float]:
    return {name: value for name in PRIORS if name.split(".")[0] == prefix}


def _small(prefixes: Sequence[str]) -> dict[str, float]:
    return {name: value for prefix in prefixes for name, value in _all(prefix, _NOTHING).items()}


def _attention_as_matmul() -> dict[str, float]:
    """One rate for all kernels, GPUs and lengths: that of matrix products on an A100."""
    return _all("attention", 0.8) | _all("kernel", 1.0) | {"attention_knee": _NOTHING, "small_head": 1.0}


def _only_products(small: Sequence[str]) -> dict[str, float]:
    held = _small(small) | _attention_as_matmul() | _all("pointwise", 1e-3) | _all("stack", 1.0)
    held |= _all("tp_exposed", _NOTHING) | _all("pp_exposed", _NOTHING)
    return held | {"optimizer": 1e3, "inside": 1e3, "between": 1e3, "ring_us": _NOTHING, "expert_us": _NOTHING}


def _without_recompute(run: Run) -> Run:
    return replace(run, policy={**run.policy, "recompute": RECOMPUTE.index("none")})


def _without_bubble(run: Run) -> Run:
    away = {"schedule": SCHEDULES.index("interleaved"), "stages_per_rank": _ENDLESS}
    return replace(run, policy={**run.policy, **(away if run.policy["pp"] > 1 else {})})


def _one_kind(run: Run) -> Run:
    return replace(run, software=replace(run.software, kind="megatron", kernel="flash2"))


def _one_generation(run: Run) -> Run:
    return replace(run, machine=replace(run.machine, generation="H100"))


def _one_kind_and_generation(run: Run) -> Run:
    return _one_generation(_one_kind(_without_recompute(_without_bubble(run))))
