"""01.9: how long a training takes, by the model's or by the hardware's utilisation."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from course_lib.checks.kit.formula import Call, Formula, formula_exercise
from course_lib.checks.kit.spec import Level
from course_lib.checks.module_01 import draw
from course_lib.costs.model.flops import rule_of_thumb_flops, training_seconds
from course_lib.costs.published.runs import GPT3_PROJECTED, LLAMA_65B, TrainingRun
from course_lib.hardware import load_device

DAY_S = 86_400
Arguments = tuple[float, float, int, float, float, str, float]


def training_days(
    parameters: float,
    tokens: float,
    gpus: int,
    peak_flops_per_s: float,
    utilisation: float,
    kind: str,
    recomputed: float,
    *,
    days: bool = True,
) -> float:
    """Days; the hardware's utilisation counts what is recomputed as work."""
    model, all_again = (rule_of_thumb_flops(parameters, tokens, recompute=again) for again in (False, True))
    flops = model if kind == "model" else model + recomputed * (all_again - model)
    seconds = training_seconds(flops=flops, gpus=gpus, peak_flops_per_s=peak_flops_per_s, utilisation=utilisation)
    return seconds / DAY_S if days else seconds


def _as_if(kind: str, recomputed: float | None, *arguments: float | str) -> float:
    """The days for another kind of utilisation, or another share of recompute."""
    parameters, tokens, gpus, peak, share, _, given = arguments
    again = given if recomputed is None else recomputed
    return training_days(parameters, tokens, gpus, peak, share, kind, again)  # type: ignore[arg-type]


def _operations(
    of: Callable[[float], float], p: float, t: float, gpus: int, peak: float, share: float, kind: str, again: float
) -> float:
    """The days for another number of operations per parameter and token, given the recomputed share."""
    return training_days(p, t, gpus, peak, share, "model", 0.0) * of(again) / 6


def _drawn(kind: str, recomputed: float | None = None) -> Call:
    def arguments(seed: int) -> Arguments:
        pick = partial(draw.choice, seed=seed)
        share = draw.choice(f"again{kind}", seed, (0.25, 0.4, 0.6)) if recomputed is None else recomputed
        peak = load_device(pick("device", options=("a100_sxm_80", "h100_sxm_80"))).peak_flops_per_s()
        parameters, tokens = pick("P", options=(7e9, 13e9, 70e9)), pick("T", options=(1e12, 2e12, 15e12))
        return (
            parameters,
            tokens,
            pick("N", options=(256, 384, 1024)),
            peak,
            pick("U", options=(0.35, 0.42)),
            kind,
            share,
        )

    return Call(text=f"utilisation of the {kind}", arguments=arguments)


def _published(run: TrainingRun, kind: str) -> Call:
    share = run.model_utilisation() if kind == "model" else run.hardware_utilisation()
    given = run.parameters, run.tokens, run.gpus, run.device.peak_flops_per_s(), share, kind, 1.0
    return Call(text=f"{run.name}, utilisation of the {kind}", arguments=lambda seed: given)


def _show(p: float, t: float, n: int, peak: float, share: float, kind: str, again: float) -> str:
    return f"{p:.3g} parameters, {t:.3g} tokens, {n} GPUs of {peak:.3g} FLOP/s, {share:.3g} of it, recomputed {again:g}"


TRAINING_DAYS = formula_exercise(
    key="01.9",
    title="days of training, by two utilisations",
    formula=Formula(
        name="number of days",
        answer=training_days,
        tolerance=1e-6,
        show=_show,
        typical=(
            (
                partial(_as_if, "hardware", None),
                "the model's utilisation counts 6PT, and nothing that ran again",
            ),
            (partial(_as_if, "hardware", 1.0), "8PT is right only if all is recomputed, and counted: the hardware's"),
            (partial(_as_if, "model", None), "the hardware does more than 6PT: a part of the forward pass runs twice"),
            (
                partial(_operations, lambda again: 36 / (6 + 2 * again)),
                "turned round: what ran again makes more operations, and more days",
            ),
            (
                partial(_operations, lambda again: 36 / 8),
                "turned round, and as if all were recomputed: the utilisation is the given one",
            ),
            (partial(_operations, lambda again: 6 + 6 * again), "the forward pass ran again, 2PT; backward did not"),
            (partial(_operations, lambda again: 6 + 4 * again), "the forward pass ran again, 2PT; 4PT is backward"),
            (lambda *a: training_days(*a) * a[4], "the utilisation is forgotten: those are days at the full peak"),
            (partial(training_days, days=False), "those are seconds; a day has 86,400"),
            (lambda *a: training_days(*a) * 24, "those are hours"),
            (lambda *a: training_days(*a) * a[2], "those are days of one GPU: they share the work"),
            (lambda *a: training_days(*a) / 3, "2PT is the forward pass alone; backward does twice as much"),
        ),
    ),
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
            praise="6PT and the share that ran again; GPT-3 takes its 35 days",
        ),
    },
    hints=(
        "Operations over operations per second. G GPUs of peak R, of which a share U is used, do G R U in a second.",
        "A forward pass is 2PT, a backward pass 4PT. Recomputing a share r of the forward pass adds r times 2PT.",
        "The model's utilisation asks what the model needed: 6PT. The hardware's asks what the GPUs did.",
    ),
)
