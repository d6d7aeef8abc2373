"""All identities of lesson 10, from the ground up, and the table that they print."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial

from course_lib.errors import four_parts
from course_lib.less.largest_values import top_k
from course_lib.less.random_rounding import qsgd
from course_lib.less.random_values import rand_k
from course_lib.less.scaled_sign import sign
from course_lib.parallel.lossy.ef21 import EF21
from course_lib.parallel.lossy.exchange import Method
from course_lib.parallel.lossy.factors import PowerSGD
from course_lib.parallel.lossy.feedback import Compressed, ErrorFeedback
from course_lib.parallel.lossy.two_way import TwoWay
from course_lib.training.gossip_technique import gossip
from course_lib.training.local_technique import Nesterov, local
from course_lib.training.lossy_technique import error_feedback, power_sgd
from course_lib.training.techniques import replicate
from course_lib.verify.identities import both_outcomes, gossiped, sent, trained
from course_lib.verify.identities.averaged import NAME
from course_lib.verify.identities.identity import Identity

_TENTH, _ALL = top_k(0.1), top_k(1.0)
_BIT = 0.0
SENT_AND_KEPT, BYTES = "sent + kept = gradient + kept before", "bytes sent = 3 messages a step"  # on four ranks
_SHAPES = {NAME: (8, 5)}  # of the 40 numbers that are averaged


class NotHeld(AssertionError):
    """An identity that does not hold; says which, how far off it is, and how far it may be."""


@dataclass(frozen=True)
class Identities:
    """How far off each claim was, in the order in which they were tried."""

    off: Mapping[str, float]
    limits: Mapping[str, float]

    def __str__(self) -> str:
        wide = max(map(len, self.off))
        return "\n".join(f"  {claim:<{wide}}  {_in_words(self.off[claim])}" for claim in self.off)


def climb_identities(identities: Mapping[str, Identity] | None = None) -> Identities:
    """Try identities on ranks, all of this file unless others are given.

    Raises: NotHeld at the first that fails.
    """
    tried = list((identities or all_identities()).values())
    found = {}
    for one in tried:
        found[one.claim] = one.found()
        if not found[one.claim] <= one.limit:
            values = f"off by {found[one.claim]:.1e}"
            rule = "it has to hold to the bit" if not one.limit else f"it has to hold within {one.limit:.0e}"
            way_out = "look at what is sent, what is kept, and by how many it is divided"
            raise NotHeld(four_parts(one.claim, values, rule, way_out))
    return Identities(found, {one.claim: one.limit for one in tried})


def identities_of(method: Method, message_bytes: int = _TENTH.message_bytes(40, 8)) -> dict[str, Identity]:
    """What every average must hold that remembers what it leaves out, by claim: for a method whose work is unknown.

    `message_bytes` are those of one rank's message of 40 float64.
    """
    every = [
        Identity(claim="all ranks take the same bits", found=lambda: sent.same_everywhere(method), limit=_BIT),
        Identity(claim=SENT_AND_KEPT, found=lambda: sent.sent_and_kept(method), limit=_BIT),
        Identity(claim=BYTES, found=lambda: sent.bytes_off(method, 3 * message_bytes), limit=_BIT),
    ]
    return {one.claim: one for one in every}


def all_identities() -> dict[str, Identity]:
    """By claim."""
    every = [*_of_averages(), *_of_sums(), *_of_rounding(), *_of_gossip(), *_of_trainings()]
    return {one.claim: one for one in every}


def _of_averages() -> Iterator[Identity]:
    memory = ErrorFeedback(_TENTH)
    yield Identity(claim=SENT_AND_KEPT, found=lambda: sent.sent_and_kept(memory), limit=_BIT)
    yield Identity(
        claim="the same with a server in between",
        found=lambda: sent.sent_and_kept(TwoWay(_TENTH)),
        limit=_BIT,
    )
    yield Identity(claim="all sent + what is left = all gradients", found=lambda: sent.all_sent(memory), limit=_BIT)
    yield Identity(
        claim="weights less what is kept = exact weights",
        found=lambda: sent.virtual_iterate(ErrorFeedback(sign())),
    )
    for title, method in (
        ("top-k", Compressed(_ALL)),
        ("memory", ErrorFeedback(_ALL)),
        ("two ways", TwoWay(_ALL)),
        ("EF21", EF21(_ALL)),
    ):
        yield Identity(claim=f"k = d is the mean: {title}", found=partial(sent.nothing_lost, method), limit=_BIT)
    yield Identity(
        claim="rounds that send everything lose nothing",
        found=lambda: sent.nothing_lost(TwoWay(top_k(0.25), rounds=4)),
        limit=_BIT,
    )
    yield Identity(
        claim="after r rounds (1 - k/d)^r is left at most",
        found=lambda: max(sent.left_after_rounds(r, 0.1, _one_way(r)) for r in (1, 2, 3)),
        limit=_BIT,
    )


def _of_sums() -> Iterator[Identity]:
    yield Identity(claim="factors of full rank give the mean", found=lambda: sent.nothing_lost(PowerSGD(5, _SHAPES)))
    yield Identity(
        claim="the same after gradients that lack rows",
        found=lambda: sent.nothing_lost_of_few_rows(PowerSGD(5, _SHAPES), columns=5),
    )
    yield Identity(
        claim="factors of the ranks = of their mean",
        found=lambda: sent.mean_alone(PowerSGD(2, _SHAPES)),
    )
    yield Identity(
        claim="places drawn alike may be added up",
        found=lambda: sent.mean_alone(Compressed(rand_k(0.1))),
    )
    for title, compressor in (("top-k", _TENTH), ("sign", sign()), ("QSGD", qsgd(4, 16))):
        yield Identity(
            claim=f"1024 x the loss is 1024 x the message: {title}",
            found=partial(sent.scales, Compressed(compressor)),
            limit=_BIT,
        )
    yield Identity(
        claim="all ranks take the same bits", found=lambda: sent.same_everywhere(ErrorFeedback(_TENTH)), limit=_BIT
    )
    yield Identity(
        claim=BYTES,
        found=lambda: sent.bytes_off(Compressed(_TENTH), 3 * _TENTH.message_bytes(40, 8)),
        limit=_BIT,
    )


def _of_rounding() -> Iterator[Identity]:
    yield Identity(claim="QSGD is right on average", found=lambda: both_outcomes.expectation(qsgd(4, 128)))
    yield Identity(
        claim="its variance is omega's at most",
        found=lambda: max(both_outcomes.variance_over_bound(qsgd(s, 128)) for s in (1, 4, 16)),
        limit=_BIT,
    )


def _of_gossip() -> Iterator[Identity]:
    one_peer = "one_peer_exponential"
    yield Identity(claim="gossip keeps the mean", found=lambda: gossiped.mean_kept(one_peer), limit=_BIT)
    yield Identity(claim="one peer: agreed after log2 p steps", found=gossiped.agreed_after_a_cycle, limit=_BIT)
    yield Identity(claim="what a step leaves is 1 - gap", found=lambda: gossiped.contraction("ring"))
    yield Identity(
        claim="equal curvatures: the mean is exact training", found=lambda: gossiped.equal_curvatures("ring")
    )
    yield Identity(claim="trackers add up to the gradients", found=lambda: gossiped.trackers_sum("ring"))
    yield Identity(
        claim="the complete graph is DDP",
        found=lambda: trained.same_weights((gossip("complete"),), (replicate(),)),
    )


def _of_trainings() -> Iterator[Identity]:
    yield Identity(
        claim="meeting after each step is DDP (SGD)",
        found=lambda: trained.same_weights((local(1),), (replicate(),)),
    )
    yield Identity(
        claim="an outer step of 1 is the mean",
        found=lambda: trained.same_weights((local(2, Nesterov(1.0, 0.0)),), (local(2),), optimizer="adamw"),
    )
    yield Identity(claim="one worker is AdamW alone", found=lambda: trained.one_worker((local(2, Nesterov(1.0, 0.0)),)))
    lossy = {"memory": error_feedback(_TENTH), "factors": power_sgd(2)}
    for title, method in lossy.items():
        yield Identity(
            claim=f"stopped and gone on = uninterrupted: {title}",
            found=partial(trained.goes_on, (replicate(lossy=method),)),
            limit=_BIT,
        )
    yield Identity(
        claim="after each step all ranks have the same weights",
        found=lambda: trained.ranks_equal((replicate(lossy=lossy["factors"]),)),
        limit=_BIT,
    )
    for title, technique in {"local": local(3, Nesterov()), "gossip": gossip("ring", track=True)}.items():
        yield Identity(
            claim=f"stopped and gone on = uninterrupted: {title}",
            found=partial(trained.goes_on, (technique,)),
            limit=_BIT,
        )
    yield Identity(
        claim="two ranks go on: the mean of what is kept stays",
        found=lambda: trained.fewer_ranks((replicate(lossy=lossy["memory"]),)),
    )


def _one_way(rounds: int) -> Method:
    """One rank is its own server, whose answer has room for all that came."""
    return TwoWay(_TENTH, rounds)


def _in_words(off: float) -> str:
    return "to the bit" if not off else f"{off:8.1e}"
