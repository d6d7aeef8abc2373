"""02.10: which all-reduce is the fastest, for a tensor, its ranks and their wires."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from course_lib.checks.kit.formula import watched
from course_lib.checks.kit.probe import ProbeExercise
from course_lib.checks.kit.said import by_the_library, wrong_kind
from course_lib.checks.kit.spec import Level
from course_lib.comm.ledger import Ledger
from course_lib.units import GB, format_seconds

NAMES = ("ring", "recursive_doubling", "halving_doubling", "hierarchical")
_EQUAL = 1 + 1e-9  # two that are equally fast, up to rounding
_SMALLEST = 4  # bytes of one number
Times = Mapping[str, float]  # seconds, by name


class Wire(NamedTuple):
    """Seconds of latency, and for each byte."""

    alpha: float
    beta: float


class Network(NamedTuple):
    """Ranks, bytes of the tensor, ranks of a node, and the wires inside a node and between nodes."""

    p: int
    M: int
    node_size: int
    inside: Wire
    between: Wire

    def __str__(self) -> str:
        wires = {"inside": self.inside, "between": self.between} if self.node_size > 1 else {"between": self.between}
        said = [f"{name} = ({wire.alpha:.3g}, {wire.beta:.3g})" for name, wire in wires.items()]
        return f"p = {self.p}, M = {self.M}, node_size = {self.node_size}, {', '.join(said)}"

    @property
    def all_cards(self) -> Wire:
        """What a ring through the nodes meets, if it leaves each of them through all cards, one for each rank."""
        if self.node_size == 1:
            return self.between
        return Wire(self.between.alpha, max(self.inside.beta, self.between.beta / self.node_size))

    @property
    def doublings(self) -> int:
        """Of the largest power of two that is not above p."""
        return self.p.bit_length() - 1


_Slip = Callable[[Network], Times]


class Shape(NamedTuple):
    """A network but for its wires."""

    p: int
    latencies: float  # in which one tensor could pass; 0: a single number
    node_size: int = 1
    faster: float = 3  # is the wire inside a node


class Networks(NamedTuple):
    """One run: the answer is called for each of these shapes."""

    text: str
    shapes: tuple[Shape, ...]
    world_size: int = 1

    def __str__(self) -> str:
        return self.text


def draw(case: Networks, seed: int) -> list[Network]:
    """The shapes on wires that another seed makes faster or slower: the fastest algorithm stays the fastest."""
    rng, found = random.Random(f"{case}{seed}"), []
    for p, latencies, node_size, faster in case.shapes:
        between = Wire(rng.randint(4, 30) * 1e-6, 1 / (rng.choice((12.5, 25, 50, 100)) * GB))
        inside = Wire(between.alpha / faster, between.beta / faster)
        M = round(latencies * between.alpha / between.beta) or _SMALLEST
        found.append(Network(p, M, node_size, inside, between))
    return found


def _ring(p: float, M: float, wire: Wire) -> float:
    return 2 * (p - 1) * (wire.alpha + M / p * wire.beta)


def _doubling(steps: float, n: Network) -> float:
    return steps * (n.between.alpha + n.M * n.between.beta)


def _halving(steps: float, n: Network) -> float:
    """There and back, so many steps each way."""
    return 2 * (steps * n.between.alpha + (1 - 1 / 2**steps) * n.M * n.between.beta)


def _extra(n: Network) -> float:
    """Whole tensors to and from the ranks that are too many for a power of two."""
    return _doubling(2, n) * (n.p > 2**n.doublings)


def times(n: Network) -> Times:
    """Seconds of each algorithm; in nodes of one rank the hierarchy is the ring."""
    seconds = {
        "ring": _ring(n.p, n.M, n.all_cards),
        "recursive_doubling": _doubling(n.doublings, n) + _extra(n),
        "halving_doubling": _halving(n.doublings, n) + _extra(n),
    }
    return {**seconds, **_hierarchical(n)}


def _hierarchical(n: Network, nodes: float = 0, chunk: float = 0) -> Times:
    """Rings in the nodes, and one through them; nothing in nodes of one rank."""
    if n.node_size == 1:
        return {}
    through = _ring(nodes or n.p / n.node_size, chunk or n.M / n.node_size, n.between)
    return {"hierarchical": _ring(n.node_size, n.M, n.inside) + through}


def _cards_alone(n: Network) -> Wire:
    return Wire(n.between.alpha, n.between.beta / n.node_size)


def _hasty(n: Network) -> Wire:
    return n.all_cards if n.node_size == 1 else n.all_cards._replace(alpha=n.inside.alpha)


def _free(wire: str, n: Network) -> Times:
    """As if nothing were paid for `alpha` or `beta`."""
    return times(n._replace(inside=n.inside._replace(**{wire: 0.0}), between=n.between._replace(**{wire: 0.0})))


def _but(change: Callable[[Network], Times], n: Network) -> Times:
    """The times, some of them other ones."""
    return {**times(n), **change(n)}


def _one_node_s_hierarchy(n: Network) -> Times:
    if n.node_size > 1:
        return times(n)
    return {("hierarchical" if name == "ring" else name): time for name, time in times(n).items()}


def _rounded_up(p: int) -> int:
    return (p - 1).bit_length()


def _doublings(steps: float, extra: float, n: Network) -> Times:
    """So many doublings, and so many seconds for the further steps where p is no power of two."""
    more = extra * (_extra(n) > 0)
    return _but(
        lambda n: {"recursive_doubling": _doubling(steps, n) + more, "halving_doubling": _halving(steps, n) + more}, n
    )


def _never(*names: str) -> _Slip:
    return partial(_but, lambda n: dict.fromkeys(names, math.inf))


SLIPS: Mapping[str, tuple[_Slip, ...]] = {
    'in nodes of one rank the hierarchy is the ring: return "ring"': (_one_node_s_hierarchy,),
    "neither of the doublings is chosen where p is no power of two. They run on every number of ranks, with two more "
    "steps": (lambda n: (_never("recursive_doubling", "halving_doubling") if _extra(n) else times)(n),),
    "on 2 ranks both doublings send M bytes in all, and halving-doubling pays one latency more": (
        partial(_but, lambda n: {"halving_doubling": 0.0} if n.p == 2 else {}),
    ),
    "a single number goes the wrong way. Only latency counts then: each step pays one alpha, recursive doubling makes "
    "log2(p) steps, and halving-doubling twice as many": (
        partial(_free, "alpha"),
        partial(_but, lambda n: {"halving_doubling": _halving(n.doublings, n) / 2 + _extra(n)}),
        _never("recursive_doubling"),
    ),
    "bytes cost next to nothing in these choices. In recursive doubling each step carries a whole tensor, and the ring "
    "carries less than two tensors in all": (partial(_free, "beta"),),
    "halving-doubling wins too often. It carries M / 2 + M / 4 + ... twice, there and back": (
        partial(_but, lambda n: {"halving_doubling": _halving(n.doublings, n._replace(M=n.M // 2)) + _extra(n)}),
    ),
    "the tensor is as expensive as if the bytes of all ranks were added up. They send at the same time, so count what "
    "one rank sends": (lambda n: times(n._replace(M=n.p * n.M)),),
    "the ring wins too often. It goes round twice, p - 1 steps to add up and p - 1 steps to hand out": (
        partial(_but, lambda n: {"ring": _ring(n.p, n.M, n.all_cards) / 2}),
    ),
    "log2(p), rounded up, is not enough. If p is no power of two, two further steps take whole tensors to and from the "
    "ranks that are too many": (lambda n: _doublings(_rounded_up(n.p), 0, n),),
    "if p is no power of two, the doublings are too cheap. Each of their two further steps pays a latency and a whole "
    "tensor: alpha + M * beta": (
        lambda n: _doublings(n.doublings, 2 * n.M * n.between.beta, n),
        lambda n: _doublings(n.doublings, _doubling(1, n), n),
    ),
    "if p is no power of two, the doublings are too dear. Only q ranks swap, where q is the largest power of two below "
    "p: in log2(q) steps, and two further ones": (
        lambda n: _doublings(_rounded_up(n.p), _extra(n), n),
        lambda n: _doublings(math.log2(n.p), _extra(n), n),
    ),
    "the ring never wins. Does each of its steps carry only M / p? And if p is no power of two, do both doublings pay "
    "for two more steps with whole tensors?": (_never("ring"),),
    "the hierarchy wins too seldom. A ring of p / node_size ranks goes through the nodes, with M / node_size bytes": (
        partial(_but, lambda n: _hierarchical(n, nodes=n.p)),
        partial(_but, lambda n: _hierarchical(n, chunk=n.M)),
        _never("hierarchical"),
    ),
    "the hierarchy wins too seldom. Do its steps inside a node use the wire inside?": (
        partial(_but, lambda n: _hierarchical(n._replace(inside=n.between))),
    ),
    "the hierarchy wins too often. Its steps inside a node cost something, too: a latency each, and bytes on the wire "
    "inside, there and back": (
        partial(_but, lambda n: _hierarchical(n._replace(inside=Wire(0.0, 0.0)))),
        partial(_but, lambda n: _hierarchical(n._replace(inside=n.inside._replace(alpha=0.0)))),
        partial(_but, lambda n: _hierarchical(n._replace(inside=Wire(n.inside.alpha / 2, n.inside.beta / 2)))),
    ),
    "the hierarchy wins too often. How many ranks does its ring through the nodes have, how many bytes, and on which "
    "wire?": (
        partial(_but, lambda n: _hierarchical(n, nodes=n.node_size)),
        partial(_but, lambda n: _hierarchical(n, chunk=n.M / n.p)),
        partial(_but, lambda n: _hierarchical(n._replace(between=n.inside))),
    ),
    "the ring wins too seldom. That is a textbook's ring, which leaves a node through one card. NCCL's leaves it "
    "through all node_size cards at once": (partial(_but, lambda n: {"ring": _ring(n.p, n.M, n.between)}),),
    "the ring wins too often. Through all cards its bytes are fast, but no faster than they come through a node": (
        partial(_but, lambda n: {"ring": _ring(n.p, n.M, _cards_alone(n))}),
    ),
    "the ring wins too often. Its bytes go through all cards, but each of its steps still waits for the alpha of "
    "between": (partial(_but, lambda n: {"ring": _ring(n.p, n.M, _hasty(n))}),),
    "a doubling wins too often. In its widest steps each rank needs a card for itself, so only the ring gains from all "
    "of them": (lambda n: {**times(n._replace(between=n.all_cards)), **_hierarchical(n)},),
    "a flat way wins too often. Its steps are paid on the wire between the nodes": (
        lambda n: {**times(n._replace(between=n.inside)), **_hierarchical(n)},
    ),
}


def _choose(function: Callable[..., Any], networks: Sequence[Network]) -> list[tuple[Any, str]]:
    """Runs on a rank: what the answer returned for each network, and the library's formula that it called."""
    results = [watched(function, network) for network in networks]
    return [(name if isinstance(name, str) else type(name), library) for name, library in results]


def fastest(seconds: Times) -> list[str]:
    """The names of the fastest, of which a tie has several."""
    return [name for name, time in seconds.items() if time <= min(seconds.values()) * _EQUAL]


def verdict(case: Networks, networks: Sequence[Network], reports: tuple[Any, ...], book: Ledger) -> str | None:
    """Every choice must be the fastest; what is said otherwise looks at all of them."""
    names, libraries = zip(*reports[0], strict=True)
    for name in names:
        if name not in NAMES:
            said = f"returned {name!r}" if isinstance(name, str) else wrong_kind(name.__name__, "a name")
            return f"{case}: {said}; choose one of {', '.join(map(repr, NAMES))}"
    wrong = [i for i, n in enumerate(networks) if names[i] not in fastest(times(n))]
    if not wrong:
        return f"{case}: {copied}" if (copied := by_the_library(max(libraries))) else None
    explained = (
        says
        for says, slips in SLIPS.items()
        if any(_explains(slip, networks, names) and _passes_before(slip, case) for slip in slips)
    )
    seen = f"{len(wrong)} of {len(networks)} choices are not the fastest"
    return f"{case}: {seen}: {next(explained, '') or _first(networks[wrong[0]], names[wrong[0]])}"


def _explains(slip: _Slip, networks: Sequence[Network], names: Sequence[str]) -> bool:
    return all(name in fastest(slip(n)) for n, name in zip(networks, names, strict=True))


def _passes_before(slip: _Slip, case: Networks) -> bool:
    """Whether a slip chooses right in the parts before this one, as the answer did."""
    cases = [level.cases[0] for level in _CHOICE.levels.values()]
    earlier = [n for before in cases[: cases.index(case)] for n in draw(before, 0)]
    return all(set(fastest(slip(n))) & set(fastest(times(n))) for n in earlier)


def _first(n: Network, name: str) -> str:
    """One wrong choice, with the times by which one sees why."""
    seconds = times(n)
    best, mine = fastest(seconds)[0], seconds.get(name, seconds["ring"])
    took, least = format_seconds(mine), format_seconds(seconds[best])
    if took == least:
        return f"for {n} you chose {name}; {best} is faster by {format_seconds(mine - seconds[best])}"
    return f"for {n} you chose {name}, {took}; {best} takes {least}"


_POWERS = [Shape(*x) for x in ((64, 0), (64, 0.5), (64, 4), (64, 5000), (2, 5000), (8, 1.5), (8, 40))]
_LONG = [Shape(*x) for x in ((1000, 4000), (6, 3.5), (3, 20), (96, 400), (32, 400))]
_SHORT = [Shape(*x) for x in ((1000, 0), (1000, 30), (6, 1), (96, 40), (3, 0.4), (3, 1), (5, 1.2))]
_FAST = [
    Shape(*x)
    for x in ((64, 0, 8, 9), (16, 0, 8, 4), (64, 40, 8, 9), *((1000, M, 4) for M in (60, 400, 9000)), (96, 400, 8, 4))
]
_AS_SLOW = [Shape(96, 400, 8, 1), Shape(32, 30, 4, 1)]


def _level(points: int, text: str, shapes: list[Shape], praise: str, *, again: bool = False) -> Level:
    return Level(points=points, again=again, cases=(Networks(text, tuple(shapes)),), praise=praise)


_CHOICE = ProbeExercise(
    key="02.10",
    title="choose the algorithm",
    inputs=draw,
    probe=_choose,
    verdict=verdict,
    levels={
        "powers": _level(
            2, "ranks alike, 2, 4, 8, ... of them", _POWERS,
            "whole tensors while latency costs most, halves and quarters when bytes do",
        ),
        "any-p": _level(
            2, "ranks alike, any number of them", _SHORT + _LONG,
            "and a long tensor takes the ring, if there are ranks too many for a power of two", again=True,
        ),
        "nodes": _level(
            1, "ranks in nodes", _FAST + _AS_SLOW,
            "the hierarchy, which saves latencies, and for very long tensors the ring through all cards",
        ),
    },
    hints=(
        "Each way takes its number of steps times alpha, and the bytes that one rank sends in all of them times beta. "
        "Write these two numbers down for 8 ranks first: how many steps, and how many times M?",
        "A ring makes 2 (p - 1) steps of M / p bytes. On a power of two, recursive doubling makes log2(p) steps of M "
        "bytes. Halving-doubling makes twice as many, and there and back it carries M / 2 + M / 4 + ... twice.",
        "q = 2 ** (p.bit_length() - 1) is the largest power of two that is not above p. If it is not p itself, both "
        "doublings run on q ranks and pay 2 * (alpha + M * beta) more.",
        "Write the ring as a function of ranks, bytes and wire. The hierarchy is then a ring of node_size ranks with M "
        "bytes on the wire inside, and one of p / node_size ranks with M / node_size bytes on the wire between. The "
        "ring of all ranks has a wire of its own: between's alpha, and the larger of two betas.",
        'Put the four times into a dict, seconds = {"ring": ..., ...}, and return min(seconds, key=seconds.get).',
    ),
)  # fmt: skip
