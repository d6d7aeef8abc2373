"""Errors of expert parallelism: wrong only in gradients, and with AdamW no loss curve shows them."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from course_lib.training.expert_technique import AXIS
from course_lib.training.setup import Setup
from course_lib.verify.museum.bug import ISSUES, PULLS, Bug, Issue


def experts_times_ep(setup: Setup) -> None:
    """An expert has seen the rows of all ranks, so that its gradient is a sum already; here it is added up again."""
    ranks = setup.local.size(AXIS)
    places = setup.local.layout.places
    for name, parameter in setup.local.parameters.items():
        if AXIS in places[name].shard:
            parameter.register_hook(_times(ranks))


def router_not_summed(setup: Setup) -> None:
    """The routers are on every rank, and each learns from this rank's tokens alone."""
    _leave_out(setup, lambda name: ".router." in name)


def dense_not_summed(setup: Setup) -> None:
    """What every rank has whole learns from this rank's tokens alone, as an expert rightly does."""
    _leave_out(setup, lambda name: ".experts." not in name)


def _times(ranks: int) -> Callable[[Tensor], Tensor]:
    return lambda gradient: gradient * ranks


def _leave_out(setup: Setup, which: Callable[[str], bool]) -> None:
    layout = setup.local.layout
    for name in filter(which, layout.trained):
        layout.write(name, partial=layout.places[name].partial - {AXIS})


_EXHIBITS = (
    Bug(
        name="experts_times_ep",
        title="The experts' gradients are ep times too large",
        technique=experts_times_ep,
        where=Issue(title="Wrong-size gradients in Expert Parallel MoE", link=ISSUES.format("pytorch/pytorch", 160285)),
        first_rung="gradients",
        looks="outputs are right, and AdamW divides the factor away",
    ),
    Bug(
        name="router_not_summed",
        title="The routers' gradients are not added up over the ranks",
        technique=router_not_summed,
        where=Issue(
            title='Wrong router gradient with `experts_implementation="batched_mm"` under expert parallelism',
            link=ISSUES.format("huggingface/transformers", 48687),
        ),
        first_rung="gradients",
        looks="each rank's router learns from its own tokens and drifts apart; the loss falls as it should",
    ),
    Bug(
        name="dense_not_summed",
        title="What all ranks have whole does not add up its gradients",
        technique=dense_not_summed,
        where=Issue(
            title="Fix expert-parallel training: NaN gradients and missing gradient contributions",
            link=PULLS.format("huggingface/transformers", 48205),
        ),
        first_rung="gradients",
        looks="every rank trains attention and embedding on its own tokens; the loss falls as it should",
    ),
)
EXPERT_BUGS = {bug.name: bug for bug in _EXHIBITS}
