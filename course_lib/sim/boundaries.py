"""Which runs fit and which go out of memory: published runs, and the published limits between the two."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from course_lib.config import ModelConfig
from course_lib.costs.sweep.job import Job
from course_lib.costs.sweep.software import Software
from course_lib.sim.gpus import machine_called
from course_lib.sim.memory import memory_of
from course_lib.sim.policies import RECOMPUTE, SCHEDULES, Policies
from course_lib.sim.room import LIKELY, chance_of
from course_lib.sim.runs import EVER_MORE, Run

_ABOVE = 1.05  # of the size that states alone would allow: no run can hold that
_HIDDEN, _ZERO_SEQUENCE, _ZERO_BATCH = 8192, 1024, 8  # ZeRO's runs of many billions; Rajbhandari et al. 2020, Table 4


@dataclass(frozen=True, kw_only=True)
class Boundary:
    """A configuration that ran, or could not, and what the simulator says of its memory."""

    name: str
    source: str
    ran: bool
    predicted_to_fit: bool


def cases(runs: Iterable[Run], rows: Iterable[Any]) -> list[Boundary]:
    """Runs that ran or went out of memory, and both sides of the limits among the rows."""
    return [*map(_of_run, runs), *(case for row in rows for case in _of_limit(row)), *_korthikanti()]


def recall(found: Iterable[Boundary], *, ran: bool) -> tuple[int, int]:
    """How many cases of this kind the simulator calls as they were, and how many there are."""
    kind = [case for case in found if case.ran == ran]
    return sum(case.predicted_to_fit == ran for case in kind), len(kind)


def fits(run: Run) -> bool:
    """Whether it more likely fits than not, with whatever recompute its row leaves open."""
    ways: Sequence[str | None] = [None] if run.recompute_stated else [None, *EVER_MORE]
    return any(chance_of(run, way) >= LIKELY for way in ways)


def _of_run(run: Run) -> Boundary:
    """A run that is known to have fitted, or not to."""
    return Boundary(name=run.name, source=run.source, ran=not run.out_of_memory, predicted_to_fit=fits(run))


def _of_limit(row: Any) -> Iterator[Boundary]:
    """The largest model that was trained with a stage of ZeRO fitted; above what its states alone take none can."""
    if row.get("kind") != "memory_feasibility_max":
        return
    measured, parallel = row["measured"], row["parallel"]
    for stage, name in enumerate(("baseline", "zero1")):
        sizes = {True: measured["max_params_b_measured"][name], False: _ABOVE * measured["max_params_b_theory"][name]}
        for ran, billions in sizes.items():
            fit = _zero_fits(billions * 1e9, parallel["tp"], parallel["dp"], stage)
            yield Boundary(name=f"{row['id']} {name} {billions:.3g} B", source="zero", ran=ran, predicted_to_fit=fit)


def _zero_fits(parameters: float, tp: int, dp: int, stage: int) -> bool:
    """A GPT of about so many parameters with full recompute on V100s of 32 GB."""
    hidden = _HIDDEN if parameters > 8e9 else _HIDDEN // 4
    layers = max(1, round(parameters / (12 * hidden**2)))
    model = _gpt("GPT", hidden, layers, hidden // 128)
    policies = _policy(tp=tp, dp=dp, zero_stage=stage, micro_batch=_ZERO_BATCH // 8, sequence=_ZERO_SEQUENCE)
    return _total(model, policies, "zero") <= _capacity("V100")


def _korthikanti() -> Iterator[Boundary]:
    """Four models that need more than 80 GB without recompute, and fit with selective recompute and shared sequences.

    Source: Korthikanti et al. 2022, Figure 1 and Table 3.
    """
    for name, hidden, layers, heads, pp, v, micro in (
        ("GPT 22B", 6144, 48, 64, 1, 1, 4),
        ("GPT 175B", 12288, 96, 96, 8, 3, 1),
        ("GPT 530B", 20480, 105, 128, 35, 3, 1),
        ("GPT 1T", 25600, 128, 160, 64, 1, 1),
    ):
        model = _gpt(name, hidden, layers, heads)
        for ran, recompute in ((False, "none"), (True, "attention")):
            policies = _policy(
                tp=8,
                pp=pp,
                micro_batch=micro,
                n_microbatches=64 * pp if pp > 1 else 1,
                sequence=2048,
                sequence_parallel=ran,
                recompute=RECOMPUTE.index(recompute),
                schedule=SCHEDULES.index("interleaved" if v > 1 else "1f1b"),
                stages_per_rank=v,
            )
            fit = _total(model, policies, "megatron") <= _capacity("A100")
            yield Boundary(name=f"{name}, recompute {recompute}", source="kort", ran=ran, predicted_to_fit=fit)


def _policy(**fields: Any) -> Policies:
    """As the papers ran: all recomputed unless said otherwise."""
    fields = {"recompute": RECOMPUTE.index("layers"), "shards": fields.get("dp", 1)} | fields
    return Policies(**fields)


def _capacity(gpu: str) -> float:
    machine, _ = machine_called(gpu, None, "")
    return float(machine.memory_bytes)


def _total(model: ModelConfig, policies: Policies, convention: str) -> float:
    software = Software(kind="legacy", kernel="scores")
    job = Job(model=model, sequence=int(policies.sequence), software=software, convention=convention)
    return float(memory_of(job, policies).total[0])


def _gpt(name: str, hidden: int, layers: int, heads: int) -> ModelConfig:
    return ModelConfig(
        name=name,
        hidden_size=hidden,
        n_layers=layers,
        n_heads=heads,
        n_kv_heads=heads,
        ffn_size=4 * hidden,
        vocab_size=51_200,
        tied=True,
        gated_ffn=False,
        positions="learned",
        max_sequence=2048,
        norm="layer",
    )
