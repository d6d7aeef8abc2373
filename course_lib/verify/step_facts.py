"""Evidence in outputs, updates, losses and checkpoints: each function gives what it saw, or None."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from course_lib.parallel.table.agreement import listing
from course_lib.training.step import count_targets
from course_lib.verify.changes import lost_of
from course_lib.verify.equality import close, deviation, ratio_of
from course_lib.verify.evidence import Evidence
from course_lib.verify.gradient_facts import Seen, looks_rounded, ranks_of
from course_lib.verify.pairs import trainable, vanishing_gradients, wrong_after_first
from course_lib.verify.ratios import agrees, in_words
from course_lib.verify.replay import Change

_STRAYS = 3  # times as far as any other: what it does is averaged into the others' steps

# --- of the output ---


def born_otherwise(e: Evidence) -> str | None:
    """What the first rank begins with is not what one device begins with."""
    names = [name for name, x in e.alone.start.items() if not _equal(e.ranks[0].start.get(name), x)]
    return listing(names) if names else None


def born_apart(e: Evidence) -> str | None:
    """What some rank begins with is not what the first one begins with."""
    first = e.ranks[0].start
    for rank, trace in enumerate(e.ranks):
        names = [name for name, x in first.items() if not _equal(trace.start.get(name), x)]
        if names:
            return f"{names[0]} on rank {rank} was not rank 0's before the first step"
    return None


def is_random(e: Evidence) -> str | None:
    """One device itself gives two outputs for one batch."""
    return "" if e.replay.is_random else None


def mixes_rows(e: Evidence) -> str | None:
    """A row's output depends on the rows beside it."""
    return "" if e.replay.mixes_rows(max(e.n_shares, e.n_microbatches)) else None


def rows_in_another_order(e: Evidence) -> str | None:
    """Every row of the output is there, elsewhere."""
    if e.first.got is None or e.first.want is None or e.first.got.shape != e.first.want.shape:
        return None
    got, want = e.first.got.flatten(1), e.first.want.flatten(1)
    near = torch.cdist(got.double(), want.double()) <= 1e-6 * want.double().norm(dim=1).max()  # (B, B)
    found = near.int().argmax(1).tolist()
    in_place = found == list(range(len(found)))
    return (
        ", ".join(map(str, found))
        if near.any(1).all() and sorted(found) == sorted(set(found)) and not in_place
        else None
    )


def right_up_to_a_position(e: Evidence) -> str | None:
    """In every row of sequences the same first positions are right, and something is wrong at each that follows.

    Of an output (B, S, ...). What rounds, or computes otherwise, is wrong at the first position already.
    """
    got, want = e.first.got, e.first.want
    if got is None or want is None or got.shape != want.shape or got.dim() < 3:
        return None
    wrong = [deviation(one, other) > e.tolerance for one, other in zip(got.unbind(1), want.unbind(1), strict=True)]
    right = len(wrong) - sum(wrong)
    return str(right) if 0 < right < len(wrong) and all(wrong[right:]) else None


def rows_of_some_ranks(e: Evidence) -> str | None:
    """The rows of some shares are right, those of others wrong."""
    if e.n_shares < 2 or e.first.got is None or e.first.want is None or e.first.got.shape != e.first.want.shape:
        return None
    pairs = zip(e.first.got.tensor_split(e.n_shares), e.first.want.tensor_split(e.n_shares), strict=True)
    wrong = [k for k, (got, want) in enumerate(pairs) if deviation(got, want) > e.tolerance]
    return ranks_of(wrong) if 0 < len(wrong) < e.n_shares else None


def how_ranks_share(e: Evidence) -> str | None:
    """What ranks that share a batch, matrices or layers do and one device does not, whatever was seen."""
    places = " ".join(e.ranks[0].places.values())
    ways = (
        (e.n_shares > 1, "give each rank its own share of the batch, put the shares together in rank order, "),
        ("tp: Shard" in places, "add up a block's terms over the ranks once and its bias after that, "),
        ("pp: rank" in places, "let each stage take what the one before it gives, "),
    )
    found = [way for there, way in ways if there]
    return "".join(found) + "and " * bool(found)


# --- of the weights ---


def replica_apart(e: Evidence) -> str | None:
    """Equal to one device within rounding, but not to the first rank's copy."""
    return "" if e.first.replica else None


def _first_step_wrong(e: Evidence) -> list[tuple[int, str]]:
    """(rank, parameter) of all that the first step left wrong."""
    names = set(trainable(e.alone))
    return [(rank, name) for rank, name in wrong_after_first(e.alone, e.ranks, e.tolerance) if name in names]


def _updates(e: Evidence) -> list[tuple[Tensor, Tensor]]:
    """What the first step did and should have done to what it left wrong."""
    pairs = [(e.ranks[rank], name) for rank, name in _first_step_wrong(e)]
    return [
        (trace.after_first[name] - trace.start[name], e.alone.after_first[name] - e.alone.start[name])
        for trace, name in pairs
        if name in trace.after_first
    ]


def never_updated(e: Evidence) -> str | None:
    """Some parameters stay as they were, on some ranks or on all."""
    wrong, updates = _first_step_wrong(e), _updates(e)
    if not wrong or any(did.any() for did, _ in updates):
        return None
    ranks, names = sorted({rank for rank, _ in wrong}), sorted({name for _, name in wrong})
    everywhere = len(ranks) == e.n_ranks
    return listing(names) if everywhere else f"everything on {ranks_of(ranks)}"


def _update_ratio(e: Evidence) -> float | None:
    """The factor of the whole first update."""
    found = [ratio_of(did, should) for did, should in _updates(e)]
    if not found or found[0] is None or not all(one is not None and agrees(one, found[0]) for one in found):
        return None
    moved = set(trainable(e.alone)) - vanishing_gradients(e.alone).keys()
    return found[0] if moved <= {name for _, name in _first_step_wrong(e)} else None


def update_is(of: Callable[[Evidence], float]) -> Seen:
    """The first update is this many times what it should be."""

    def seen(e: Evidence) -> str | None:
        ratio = _update_ratio(e)
        return "" if ratio is not None and not agrees(of(e), 1) and agrees(ratio, of(e)) else None

    return seen


def any_update_ratio(e: Evidence) -> str | None:
    """Some factor, on some ranks."""
    ratio = _update_ratio(e)
    if ratio is None or agrees(ratio, 1):
        return None
    ranks = sorted({rank for rank, _ in _first_step_wrong(e)})
    return f"{'' if len(ranks) == e.n_ranks else f'on {ranks_of(ranks)} alone '}{in_words(ratio)}"


def strays_alone(e: Evidence) -> str | None:
    """Copies differ, and one rank's are much further from one device's than the others'."""
    far = [max((pair.distance() for pair in e.wrong if pair.rank == rank), default=0.0) for rank in range(e.n_ranks)]
    odd = max(range(e.n_ranks), key=far.__getitem__)
    others = max((one for rank, one in enumerate(far) if rank != odd), default=0.0)
    return ranks_of([odd]) if e.n_ranks > 1 and far[odd] > _STRAYS * others else None


def rounded_at_once(e: Evidence) -> str | None:
    """The first step's weights are already wrong, and errors look like rounding; what begins later is none."""
    return looks_rounded(e) if _first_step_wrong(e) else None


def only_buffers(e: Evidence) -> str | None:
    """The first step left parameters right and a buffer wrong."""
    if _first_step_wrong(e):
        return None
    buffers = [name for name in e.alone.start if name not in e.alone.parameter_names]
    wrong = [n for n in buffers for t in e.ranks if not close(t.after_first.get(n), e.alone.after_first[n])]
    return listing(sorted(set(wrong))) if wrong else None


def only_later(e: Evidence) -> str | None:
    """The first two steps are right as far as they can be seen."""
    return None if _first_step_wrong(e) else ""


# --- of the loss ---


def loss_is(of: Callable[[Evidence, int], float]) -> Seen:
    """Each rank's first loss is this number."""
    return lambda e: (
        "" if all(agrees(trace.losses[0] / (of(e, rank) or 1.0), 1.0) for rank, trace in enumerate(e.ranks)) else None
    )


def share_loss(e: Evidence, rank: int) -> float:
    """The mean of this rank's share."""
    return e.replay.losses(e.n_shares)[rank % e.n_shares]


def first_share_loss(e: Evidence, rank: int) -> float:
    """The mean of the first share."""
    return share_loss(e, 0)


def mean_of_share_losses(e: Evidence, rank: int) -> float:
    """The mean of the shares' means."""
    return sum(e.replay.losses(e.n_shares)) / e.n_shares


def summed_loss(e: Evidence, rank: int) -> float:
    """Not divided at all."""
    return e.alone.losses[0] * count_targets(e.replay.parts(1)[0])


def one_step_late(e: Evidence) -> str | None:
    """From the second on, each loss is one device's of the step before."""
    late = [(trace.losses[1:], e.alone.losses[:-1]) for trace in e.ranks]
    fits = all(agrees(got, want) for mine, other in late for got, want in zip(mine, other, strict=True))
    return "" if fits and len(e.alone.losses) > 1 else None


def loss_of_a_micro_batch(e: Evidence) -> str | None:
    """The same micro-batch of every share, or of each rank's own, gives the loss that is reported."""
    each, parts = e.replay.losses(len(e.cut.targets)), e.cut.micro_batches()

    def mean(rows: list[int]) -> float:
        return sum(each[row] * int(e.cut.targets[row]) for row in rows) / (e.cut.of(rows) or 1)

    for k in range(e.n_microbatches) if e.n_microbatches > 1 else ():
        together = mean([row for share in parts for row in share[k]])
        if any(_reported(e, losses) for losses in ([together], [mean(share[k]) for share in parts])):
            return str(k)
    return None


def _reported(e: Evidence, losses: Sequence[float]) -> bool:
    """Whether each rank's first loss is its one of these, or the only one."""
    return all(agrees(trace.losses[0] / (losses[rank % len(losses)] or 1.0), 1.0) for rank, trace in enumerate(e.ranks))


def times_loss(of: Callable[[Evidence], float]) -> Seen:
    """One device's, times a number that is not 1."""
    return lambda e: None if agrees(of(e), 1) else loss_is(lambda e, rank: e.alone.losses[0] * of(e))(e)


# --- of AdamW and its checkpoint ---


def replays(change: Change) -> Seen:
    """One device with this one thing changed leaves the same weights."""
    return lambda e: "" if e.replays(change) else None


def replays_late(change: Change) -> Seen:
    """One device on which this happens half-way leaves the same weights."""
    return lambda e: "" if e.replays(change, late=True) else None


def _loaded_otherwise(e: Evidence, names: Iterable[str]) -> str | None:
    """What was loaded is not what was saved."""
    wrong = [(rank, n) for n in names for rank, t in enumerate(e.adamw) if not _equal(t.loaded.get(n), t.half.get(n))]
    if not wrong:
        return None
    ranks = sorted({rank for rank, _ in wrong})
    where = "" if len(ranks) == e.n_ranks else f" on {ranks_of(ranks)}"
    return listing(list(dict.fromkeys(name for _, name in wrong))) + where


def weights_loaded_otherwise(e: Evidence) -> str | None:
    """Parameters after loading are not those before."""
    return _loaded_otherwise(e, e.alone.parameter_names)


def buffers_loaded_otherwise(e: Evidence) -> str | None:
    """Buffers after loading are not those before."""
    return _loaded_otherwise(e, [name for name in e.alone.start if name not in e.alone.parameter_names])


def some_states_lost(e: Evidence) -> str | None:
    """One device that loses the states of all that is placed alike, or of all else, leaves the same weights."""
    trained, places = trainable(e.alone), e.ranks[0].places
    for place in dict.fromkeys(places[name] for name in trained if name in places):
        there = frozenset(name for name in trained if places.get(name) == place)
        for names, words in ((there, place), (frozenset(trained) - there, f"elsewhere than {place}")):
            if names and e.replays(lost_of(names), late=True):
                return words
    return None


def _equal(one: Tensor | None, other: Tensor | None) -> bool:
    return one is not None and other is not None and torch.equal(one, other)
