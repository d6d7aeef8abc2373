"""01.9: how long a training takes, by the model's or by the hardware's utilisation."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

from course_lib.checks.kit.formula import Call, Formula, formula_exercise
from course_lib.checks.kit.spec import Level
from course_lib.checks.module_01 import draw
from course_lib.costs.model.flops import rule_of_thumb_flops, training_seconds
from course_lib.costs.published.runs import GPT3_PROJECTED, LLAMA_65B, TrainingRun
from course_lib.hardware import load_device

DAY_S = 86_400


class _Training(NamedTuple):
    """What is trained on what, and how well that is used; the hardware's utilisation counts what ran again as work."""

    parameters: float
    tokens: float
    gpus: int
    peak_flops_per_s: float
    utilisation: float
    kind: str
    recomputed: float

    @property
    def right(self) -> float:
        """Days."""
        model, all_again = (rule_of_thumb_flops(*self[:2], recompute=again) for again in (False, True))
        flops = model if self.kind == "model" else model + self.recomputed * (all_again - model)
        rate = {"gpus": self.gpus, "peak_flops_per_s": self.peak_flops_per_s, "utilisation": self.utilisation}
        return training_seconds(flops=flops, **rate) / DAY_S  # type: ignore[arg-type]

    def days(self, operations: float) -> float:
        """For so many operations per parameter and token."""
        return self._replace(kind="model").right * operations / 6


def _drawn(kind: str, recomputed: float | None = None) -> Call:
    def arguments(seed: int) -> _Training:
        pick = partial(draw.choice, seed=seed)
        share = draw.choice(f"again{kind}", seed, (0.25, 0.4, 0.6)) if recomputed is None else recomputed
        return _Training(
            parameters=pick("P", options=(7e9, 13e9, 70e9)),
            tokens=pick("T", options=(1e12, 2e12, 15e12)),
            gpus=pick("N", options=(256, 384, 1024)),
            peak_flops_per_s=load_device(pick("device", options=("a100_sxm_80", "h100_sxm_80"))).peak_flops_per_s(),
            utilisation=pick("U", options=(0.35, 0.42)),
            kind=kind,
            recomputed=share,
        )

    return Call(text=f"utilisation of the {kind}", arguments=arguments)


def _published(run: TrainingRun, kind: str) -> Call:
    share = run.model_utilisation() if kind == "model" else run.hardware_utilisation()
    given = _Training(run.parameters, run.tokens, run.gpus, run.device.peak_flops_per_s(), share, kind, 1.0)
    return Call(text=f"{run.name}, utilisation of the {kind}", arguments=lambda seed: given)


def _show(g: _Training) -> str:
    speed = f"{g.gpus} GPUs of {g.peak_flops_per_s:.3g} FLOP/s, {g.utilisation:.3g} of it"
    return f"{g.parameters:.3g} parameters, {g.tokens:.3g} tokens, {speed}, recomputed {g.recomputed:g}"


DAYS = Formula(
    name="number of days",
    answer=lambda g: g.right,
    tolerance=1e-6,
    show=_show,
    slips={
        "model FLOPs utilisation counts 6PT, and nothing that ran again": lambda g: g.days(6 + 2 * g.recomputed),
        "8PT is right only if all is recomputed, and counted: hardware FLOPs utilisation": lambda g: g.days(8),
        "the hardware does more than 6PT: a part of the forward pass runs twice": lambda g: g.days(6),
        "turned round: what ran again makes more operations, and more days":
            lambda g: g.days(36 / (6 + 2 * g.recomputed)),
        "turned round, and as if all were recomputed: the utilisation is the given one": lambda g: g.days(36 / 8),
        "the forward pass ran again, 2PT; backward did not": lambda g: g.days(6 + 6 * g.recomputed),
        "the forward pass ran again, 2PT; 4PT is backward": lambda g: g.days(6 + 4 * g.recomputed),
        "the utilisation is forgotten: those are days at the full peak": lambda g: g.right * g.utilisation,
        "those are seconds; a day has 86,400": lambda g: g.right * DAY_S,
        "those are hours": lambda g: g.right * 24,
        "those are days of one GPU: they share the work": lambda g: g.right * g.gpus,
        "2PT is the forward pass alone; backward does twice as much": lambda g: g.right / 3,
    },
)  # fmt: skip

_TRAINING_DAYS = formula_exercise(
    key="01.9",
    title="days of training, by two utilisations",
    formulas=(DAYS,),
    levels={
        "model": Level(
            points=2,
            cases=(_drawn("model", 0.0), _drawn("model"), _published(LLAMA_65B, "model")),
            praise="6PT, whatever is recomputed; LLaMA 65B takes its 21 days",
        ),
        "hardware": Level(
            points=2,
            cases=(
                _drawn("hardware", 0.0),
                _drawn("hardware", 1.0),
                _published(GPT3_PROJECTED, "hardware"),
                _drawn("hardware"),
            ),
            praise="6PT and the share that ran again; GPT-3 takes the talk's 35 days",
        ),
    },
    hints=(
        "Operations over operations per second. G GPUs of peak R, of which a share U is used, do G R U in a second.",
        "A forward pass is 2PT, a backward pass 4PT. Recomputing a share r of the forward pass adds r times 2PT.",
        "MFU, model FLOPs utilisation, asks what the model needed: 6PT. HFU asks what the hardware did.",
    ),
)
