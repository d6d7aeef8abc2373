"""Evidence in gradients and their norm: each function gives what it saw, or None."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from course_lib.parallel.table.agreement import listing
from course_lib.verify.equality import deviation, name_of, ratio_of, same
from course_lib.verify.evidence import Evidence
from course_lib.verify.pairs import trainable
from course_lib.verify.ratios import agrees, exactly

Seen = Callable[[Evidence], str | None]
_LEAST_LOSS_SCALE = 128
_PART = 0.5  # of the numbers are right where no more than one chunk of two is wrong
_ROUNDINGS = 4  # as many may add up in the worst number


def ranks_of(ranks: Sequence[int]) -> str:
    """Ranks in words."""
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"


def is_frozen(e: Evidence) -> str | None:
    """The first wrong one is frozen."""
    return "" if e.first.name in e.alone.frozen else None


def other_names(e: Evidence) -> str | None:
    """The ranks' models have parameters that one device's has not, or the reverse."""
    names = set(e.alone.parameter_names)
    odd = sorted({name for trace in e.ranks for name in names.symmetric_difference(trace.parameter_names)})
    return listing(odd) if odd else None


def of_kind(*kinds: str) -> Seen:
    """The first wrong tensor is the right one, rearranged in this way."""
    return lambda e: "" if e.signature.kind in kinds else None


def without_output(seen: Seen) -> Seen:
    """What the rung of outputs would have said, where a trainer shows none."""
    return lambda e: seen(e) if e.alone.output is None or e.ranks[0].output is None else None


def looks_rounded(e: Evidence) -> str | None:
    """Errors have the size that rounding to a lower precision gives, and both signs; in the first step already."""
    if e.step or e.rounded_to is None:
        return None
    if max(pair.distance() for pair in e.wrong) > _ROUNDINGS * torch.finfo(e.rounded_to).eps:
        return None
    return f"about {name_of(e.rounded_to)}'s rounding"


def some_ranks_right(e: Evidence) -> str | None:
    """Everything is right on some ranks."""
    return ranks_of(e.wrong_ranks) if len(e.wrong_ranks) < e.n_ranks else None


def only_tied(e: Evidence) -> str | None:
    """What is used in several places is wrong, and nothing else."""
    others = [name for name in trainable(e.alone) if name in e.right]
    return listing(e.names) if set(e.names) <= set(e.alone.tied) and others else None


def in_terms(e: Evidence) -> str | None:
    """The ranks hold terms of one sum."""
    place = e.ranks[0].places.get(e.first.name, "")
    shared = "Partial" in place or (e.first.name in e.alone.tied and "rank" in place)
    return place if shared and not e.alike else None


def terms_of_one_batch(e: Evidence) -> str | None:
    """The ranks worked on one batch, and what they hold adds up to the right gradient, once or a few times."""
    if e.n_shares > 1 or e.alike:
        return None
    held = [trace.second_gradients if e.step else trace.gradients for trace in e.ranks]
    want = e.alone.second_gradients if e.step else e.alone.gradients
    for name in e.names:
        if any(name not in one or one[name].shape != want[name].shape for one in held):
            return None
        ratio = ratio_of(torch.stack([one[name] for one in held]).sum(0), want[name])
        if ratio is None or not any(agrees(ratio, float(times)) for times in range(1, e.n_ranks + 1)):
            return None
    return listing(e.names)


def born_zero(e: Evidence) -> str | None:
    """A later step is wrong on all ranks alike, and something that each of them has whole began as 0."""
    if not e.step or not e.alike or e.n_ranks == e.n_shares:
        return None
    whole = [name for name in trainable(e.alone) if "Shard" not in e.ranks[0].places.get(name, "")]
    names = [name for name in whole if not e.alone.start[name].any() and e.alone.after_first[name].any()]
    return listing(names) if names else None


def some_apart(e: Evidence) -> str | None:
    """A few are wrong, and ranks hold different ones."""
    return listing(e.names) if e.right and not e.alike else None


def some_scaled(e: Evidence) -> str | None:
    """A few are wrong by one factor."""
    each = ", each" if len(e.names) > 1 else ","
    return f"{listing(e.names)}{each} {exactly(e.ratio)} one device's" if e.right and e.ratio is not None else None


def some_wrong(e: Evidence) -> str | None:
    """A few are wrong."""
    return listing(e.names) if e.right else None


def ratio_is(of: Callable[[Evidence], float]) -> Seen:
    """Everything that is wrong is wrong by this factor."""
    return lambda e: "" if e.ratio is not None and not agrees(of(e), 1.0) and agrees(e.ratio, of(e)) else None


def node_ratio(e: Evidence) -> str | None:
    """All are too large by p / n, n a part of the ranks."""
    p = e.n_shares
    nodes = [n for n in range(2, p) if p % n == 0 and e.ratio is not None and agrees(e.ratio, p / n)]
    return f"{p} ranks was divided by {nodes[0]}" if nodes and not e.right else None


def ignored_counted(e: Evidence) -> float:
    """Targets that count over all positions."""
    targets = torch.cat([targets for _, targets in e.replay.parts(1, e.step)])
    return int(e.cut.targets.sum()) / targets.numel()


def loss_scale(e: Evidence) -> str | None:
    """A power of two that is large."""
    r = e.ratio
    return f"{r:.0f}" if r and r >= _LEAST_LOSS_SCALE and agrees(math.log2(r), round(math.log2(r))) else None


def any_ratio(e: Evidence) -> str | None:
    """Some factor."""
    return exactly(e.ratio) if e.ratio is not None and not e.right else None


def stale(e: Evidence) -> str | None:
    """The second step's gradients hold the first's as well, of some ranks at least."""
    if e.step == 0:
        return None
    pairs = [(p.got, p.want, e.alone.gradients[p.name]) for p in e.wrong]
    found = [None if got is None or want is None else ratio_of(got - want, before) for got, want, before in pairs]
    of = [k for k in range(1, e.n_ranks + 1) if all(one is not None and agrees(one, k / e.n_ranks) for one in found)]
    return _on_some(of[0], e.n_ranks) if of else None


def _on_some(k: int, p: int) -> str:
    """So many ranks, as a clause; nothing if it is all of them."""
    return f" on {k} of {p} ranks" if k < p else ""


def largest_of_ranks(e: Evidence) -> str | None:
    """Each number is the largest, or the smallest, of the ranks' own."""
    rows = e.replay.row_gradients(e.step)
    if rows is None or e.n_shares < 2:
        return None
    factor = e.n_shares / int(e.cut.targets.sum())
    for name, choose in (("MAX", torch.amax), ("MIN", torch.amin)):
        own = {n: torch.stack([share.sum(0) for share in each.tensor_split(e.n_shares)]) for n, each in rows.items()}
        if all(p.got is not None and p.name in own and same(p.got, choose(own[p.name], 0) * factor) for p in e.wrong):
            return name
    return None


def other_rows(e: Evidence) -> str | None:
    """No weighing of the rows gives what the ranks hold."""
    return "" if e.is_no_sum_of_rows and not e.right else None


def in_part(e: Evidence) -> str | None:
    """On each rank all wrong numbers lie in one piece of the row that the gradients make, in either order."""
    want = e.alone.second_gradients if e.step else e.alone.gradients
    least, n_all = math.inf, 0
    for trace in e.ranks:
        held = trace.second_gradients if e.step else trace.gradients
        if any(name not in held or held[name].shape != x.shape for name, x in want.items()):
            return None
        off = [((held[name] - x).abs() > e.tolerance * x.abs().max())[x != 0] for name, x in want.items()]
        rows = [torch.cat(order).nonzero().flatten() for order in (off, off[::-1])]
        n_all = sum(map(len, off))
        least = min(least, n_all - min(int(row[-1] - row[0]) + 1 if len(row) else 0 for row in rows))
    return f"{least:,} of {n_all:,}" if least >= _PART * n_all else None


def are_alike(e: Evidence) -> str | None:
    """All ranks hold the same."""
    return "" if e.alike else None


def always(e: Evidence) -> str | None:
    """Whatever was seen."""
    return ""


# --- of the norm ---


def norm_is(of: Callable[[Evidence], float]) -> Seen:
    """The norm is this number on every rank."""
    return lambda e: "" if all(_near(trace.norm, of(e)) for trace in e.ranks) else None


def norms_apart(e: Evidence) -> str | None:
    """Ranks have norms of their own."""
    return "" if any(not _near(trace.norm, e.ranks[0].norm) for trace in e.ranks) else None


def norm_of_own(e: Evidence) -> str | None:
    """Each rank's norm is that of its own share's gradient."""
    rows = e.replay.row_gradients()
    if rows is None or e.n_shares != e.n_ranks:
        return None
    factor = e.n_shares / int(e.cut.targets.sum())
    own = [
        math.sqrt(
            sum(each.tensor_split(e.n_shares)[k].sum(0).mul(factor).square().sum().item() for each in rows.values())
        )
        for k in range(e.n_shares)
    ]
    return "" if all(_near(trace.norm, norm) for trace, norm in zip(e.ranks, own, strict=True)) else None


def norm_by(reduce: Callable[[Tensor], Tensor], join: Callable[[Tensor], Tensor]) -> Callable[[Evidence], float]:
    """Another norm of the right gradients: of each tensor, then of all."""
    return lambda e: join(torch.stack([reduce(g.double()) for g in e.alone.gradients.values()])).item()


def tied_twice(e: Evidence) -> float:
    """The norm with each tied gradient counted twice."""
    extra = sum(e.alone.gradients[name].double().square().sum().item() for name in e.alone.tied)
    return math.sqrt(e.alone.norm**2 + extra)


def _near(got: float, want: float) -> bool:
    return deviation(torch.tensor([got]).double(), torch.tensor([want]).double()) < 1e-6
