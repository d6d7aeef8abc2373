"""What a trainer cannot train on, each refused in one line that all ranks say alike."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from torch import nn

from course_lib.errors import four_parts
from course_lib.parallel.table import agreement
from course_lib.parallel.table.layout import coordinates
from course_lib.parallel.table.local import Local, own_part
from course_lib.training.batches import IGNORED


def check_trained(model: nn.Module) -> None:
    """Raise the four-part error if everything is frozen."""
    if not any(parameter.requires_grad for parameter in model.parameters()):
        rule, way_out = "an optimizer needs something to train", "set requires_grad on at least one parameter"
        raise ValueError(four_parts("Trainer", "every parameter is frozen", rule, way_out))


def check_numbers(local: Local, init: object) -> None:
    """Raise the four-part error if something is on meta and nobody says what its numbers are."""
    if local.absent and init is None:
        values = f"on meta: {agreement.listing(local.absent)}"
        rule, way_out = "what has no numbers cannot be trained", "give Trainer init=…, or build the model off meta"
        raise ValueError(four_parts("Trainer", values, rule, way_out))


def check_filled(local: Local) -> None:
    """Raise the four-part error on all ranks if what came on meta still has no numbers on one of them."""
    here = {**local.parameters, **local.buffers}
    left = []
    for name in local.absent:
        if name in here and own_part(here[name].detach()).isnan().any():
            left.append(name)
    problem = ""
    if left:
        problem = f"init leaves {agreement.listing(left)} without numbers"
    rule, way_out = "init fills every tensor that is on meta, norms and buffers too", "give it a rule"
    agreement.no_problem("Trainer", problem, rule, way_out, local.everyone, compare=True)


def check_counts(local: Local, rows: Sequence[float], targets: Sequence[float]) -> None:
    """Raise the four-part error if a share has no rows, or the whole batch no target."""
    samples = f"{int(sum(rows))} samples"
    empty = [share for share, number in enumerate(rows) if not number]
    if empty:
        shares = "1 share" if len(rows) == 1 else f"{len(rows)} shares"
        values = f"{samples} in {shares}, none for {_who(local, empty, {})}"
        way_out = f"give at least {len(rows)}"
        raise ValueError(four_parts("Trainer", values, "every rank needs a sample", way_out))
    if not sum(targets):
        values, way_out = f"{samples} without a target", f"mark fewer targets as {IGNORED}"
        rule = "the mean loss is taken over the targets that count"
        raise ValueError(four_parts("Trainer", values, rule, way_out))


def bad_loss(local: Local, losses: Sequence[float], at: Mapping[str, int]) -> str:
    """What is wrong with the losses of the shares, in four parts; empty if all are finite.

    `at` are the coordinates of the ranks that see the model's output, where those are not all.
    """
    bad = [share for share, loss in enumerate(losses) if not math.isfinite(loss)]
    if not bad:
        return ""
    values = f"loss {losses[bad[0]]} on {_who(local, bad, at)}"
    rule = "one such loss would spoil the weights of all ranks"
    return four_parts("Trainer", values, rule, "look at that rank's batch, or lower the learning rate")


def _who(local: Local, shares: Sequence[int], at: Mapping[str, int]) -> str:
    """The ranks that have these shares: rank 2, or ranks 1, 2."""
    places = list(coordinates({axis: local.size(axis) for axis in local.layout.row_axes}))
    ranks = [str(local.name_of(**places[share], **at)) for share in shares]
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    return f"ranks {', '.join(ranks)}"
