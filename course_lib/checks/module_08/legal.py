"""08.5: which layouts are possible on a cluster, and which rule takes away how many of the others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

from course_lib.checks.kit.asked import asked_exercise
from course_lib.checks.kit.said import plural, wrong_kind
from course_lib.checks.kit.spec import Level
from course_lib.verify.numbers import number_of, whole_numbers

_RULES = ("gpus", "node", "heads", "layers", "batch", "memory")
MICRO = (1, 2, 4, 8)
Way = tuple[int, int, int]  # tp, pp, micro-batch


class Job(NamedTuple):
    """A cluster and a model: GPUs, GPUs a node, heads, layers, sequences of a batch, GB of a GPU; GB of a layout."""

    gpus: int
    per_node: int
    heads: int
    layers: int
    batch: int
    room: float
    gigabytes: Callable[[int, int, int], float]

    def __str__(self) -> str:
        return f"{plural(self.gpus, 'GPU')}, {self.per_node} in a node, {self.heads} heads, {self.layers} layers"

    @property
    def ways(self) -> list[Way]:
        """All, in whichever order."""
        degrees = [n for n in range(1, self.gpus + 1) if self.gpus % n == 0]
        return [(tp, pp, micro) for tp in degrees for pp in degrees for micro in MICRO]

    def broken(self, way: Way) -> list[str]:
        """The rules that a layout breaks, in their order; of one that asks for too many GPUs that one alone."""
        tp, pp, micro = way
        if self.gpus % (tp * pp):
            return ["gpus"]
        wrong = {
            "node": tp > self.per_node,
            "heads": self.heads % tp > 0,
            "layers": self.layers % pp > 0,
            "batch": self.batch % (self.gpus // (tp * pp) * micro) > 0,
            "memory": self.gigabytes(*way) > self.room,
        }
        return [rule for rule, breaks in wrong.items() if breaks]

    def why(self, way: Way) -> str:
        """Its first broken rule, in numbers."""
        tp, pp, micro = way
        rule = self.broken(way)[0]
        if rule == "gpus":
            return f"{tp} x {pp} does not divide {self.gpus} GPUs"
        dp = self.gpus // (tp * pp)
        return {
            "node": f"a node has {self.per_node} GPUs",
            "heads": f"{self.heads} heads do not divide by {tp}",
            "layers": f"{self.layers} layers do not divide by {pp}",
            "batch": f"dp is {dp}, and {self.batch} sequences do not divide by {dp} x {micro}",
            "memory": f"it takes {self.gigabytes(*way):.1f} GB, and a GPU has {self.room:g}",
        }[rule]


@dataclass(frozen=True, kw_only=True)
class MemoryOfJob:
    """GB of a layout: states of a GPU's share, and a sequence's activations for each stage from its own on."""

    states: float
    text: float

    def __call__(self, tp: int, pp: int, micro: int) -> float:
        return self.states / (tp * pp) + self.text * micro / tp


@dataclass(frozen=True, kw_only=True)
class BatchOfJob:
    """A job; a larger batch for another seed."""

    text: str
    sizes: tuple[int, int, int, int, int]
    room: float = 80.0
    memory: MemoryOfJob = MemoryOfJob(states=128.0, text=20.0)
    reasons: bool = False  # whether the counts are looked at
    calls: bool = False  # whether the calls are
    world_size: int = 1

    def __str__(self) -> str:
        return self.text

    def jobs(self, seed: int) -> list[DegreesAsked]:
        """One."""
        gpus, per_node, heads, layers, batch = self.sizes
        job = Job(gpus, per_node, heads, layers, batch * (1 + seed % 3), self.room, self.memory)
        return [DegreesAsked(job, self.reasons, self.calls)]


class DegreesAsked(NamedTuple):
    """A job, and what is looked at."""

    job: Job
    reasons: bool
    calls: bool

    def __str__(self) -> str:
        return str(self.job)


class _Found(NamedTuple):
    """What an answer returned, as far as it can be read; `problem` says what cannot."""

    problem: str = ""
    possible: Sequence[Way] = ()
    rejected: Mapping[str, float] = MappingProxyType({})
    calls: int = 0


def _use(answer: Callable[..., Any], asked: DegreesAsked) -> _Found:
    """Runs on a rank: count how often the memory of a layout is asked for."""
    job, calls = asked.job, Counter[str]()

    def gigabytes(tp: int, pp: int, micro: int) -> float:
        calls["memory"] += 1
        return job.gigabytes(tp, pp, micro)

    result = answer(*job[:-1], gigabytes)
    if not isinstance(result, tuple | list) or len(result) != 2:
        return _Found(wrong_kind(type(result).__name__, "two things: the possible layouts, and a dict of counts"))
    ways, counts = result
    ways = ways.tolist() if hasattr(ways, "tolist") else ways  # NumPy's
    if not isinstance(ways, list | tuple | set):
        return _Found(wrong_kind(f"{type(ways).__name__} in first place", "a list of layouts"))
    if not isinstance(counts, Mapping):
        return _Found(wrong_kind(f"{type(counts).__name__} in second place", "a dict of counts"))
    possible: list[Way] = []
    for way in ways:
        numbers = whole_numbers(way)
        if isinstance(numbers, str) or len(numbers) != 3:
            return _Found(f"{way!r} is no layout: give tp, pp and the micro-batch, three whole numbers")
        possible.append((numbers[0], numbers[1], numbers[2]))
    rejected: dict[str, float] = {}
    for rule, count in counts.items():
        if (number := number_of(count)) is None:
            return _Found(f"the count of {rule!r} is {count!r}, not a number")
        rejected[str(rule)] = number
    return _Found(possible=possible, rejected=rejected, calls=calls["memory"])


def _judge(asked: DegreesAsked, found: _Found) -> str | None:
    reason = found.problem or _wrong_ways(asked.job, found.possible)
    if not reason and asked.reasons:
        reason = _wrong_counts(asked.job, found.rejected)
    return reason or (_too_many_calls(asked.job, found.calls) if asked.calls else "")


def _wrong_ways(job: Job, found: Sequence[Way]) -> str:
    every = job.ways
    for way in found:
        tp, pp, micro = way
        named = f"tp {tp}, pp {pp}, micro-batch {micro}"
        if way not in every:
            return (
                f"{named} is none of the layouts: degrees divide the GPUs, and a micro-batch has 1, 2, 4 or 8 sequences"
            )
        if job.broken(way):
            return f"{named} is among the possible layouts, but {job.why(way)}"
        if found.count(way) > 1:
            return f"{named} stands there {found.count(way)} times"
    for way in every:
        if way not in found and not job.broken(way):
            tp, pp, micro = way
            return f"tp {tp}, pp {pp}, micro-batch {micro} is missing, and breaks no rule"
    return ""


def _wrong_counts(job: Job, found: Mapping[str, float]) -> str:
    want = _counts(job)
    if strange := [rule for rule in found if rule not in _RULES]:
        return f"{strange[0]!r} is no rule: they are {', '.join(_RULES)}"
    for rule, right in want.items():
        if found.get(rule, 0) != right:
            return (
                f"the possible layouts are right, but rule {rule!r} has {found.get(rule, 0)} layouts, expected {right}"
            )
    if missing := [rule for rule in _RULES if rule not in found]:
        return f"the counts are right, but {missing[0]!r} is not among them: a rule that throws out nothing counts 0"
    return ""


def _too_many_calls(job: Job, calls: int) -> str:
    least = sum(job.broken(way) in ([], ["memory"]) for way in job.ways)
    if calls <= least:
        return ""
    return (
        f"right, but gigabytes(...) was called {calls} times, target {least}: ask it last, of what breaks no other rule"
    )


def _counts(job: Job, which: Callable[[list[str]], Iterable[str]] = lambda broken: broken[:1]) -> dict[str, int]:
    counts = Counter(rule for way in job.ways for rule in which(job.broken(way)))
    return {rule: counts[rule] for rule in _RULES}


def _searched(
    *given: Any,
    broken: Callable[[Job, Way], list[str]] = Job.broken,
    which: Callable[[list[str]], Iterable[str]] = lambda broken: broken[:1],
) -> tuple[list[Way], dict[str, int]]:
    """Right, unless a part is chosen otherwise."""
    job = Job(*given)
    found = {way: broken(job, way) for way in job.ways}
    counts = Counter(rule for rules in found.values() for rule in which(rules))
    return [way for way, rules in found.items() if not rules], {rule: counts[rule] for rule in _RULES}


def _without(rule: str) -> Callable[..., Any]:
    """A search that forgets a rule."""
    return partial(_searched, broken=lambda job, way: [one for one in job.broken(way) if one != rule])


def _of(**other: Callable[[Job, Way], Any]) -> Callable[..., Any]:
    """A search in which a number of the job is another one for each layout."""
    return partial(
        _searched,
        broken=lambda job, way: job._replace(**{name: of(job, way) for name, of in other.items()}).broken(way),
    )


_LEGAL = asked_exercise(
    key="08.5",
    title="which layouts are possible, and why not the others",
    records=lambda case, seed: case.jobs(seed),
    use=_use,
    judge=_judge,
    slips={
        "no layout was thrown out for its node. tp must not be larger than per_node": _without("node"),
        "tp may fill a node: only what is larger than per_node breaks the rule": _of(
            per_node=lambda job, way: job.per_node - 1
        ),
        "the batch was divided by dp alone. Each of dp replicas takes micro-batches of so many sequences": _of(
            batch=lambda job, way: job.batch * way[2]
        ),
        "the batch was divided by the micro-batch alone. dp replicas share it as well": _of(
            batch=lambda job, way: (
                job.batch * (job.gpus // (way[0] * way[1]) if job.gpus % (way[0] * way[1]) == 0 else 1)
            )
        ),
        "a layout that takes more memory than there is was let through": _without("memory"),
        "each layout was counted at every rule that it breaks. Count it once, at the first": partial(
            _searched, which=lambda rules: rules
        ),
        "each layout was counted at the last rule that it breaks. Count it at the first": partial(
            _searched, which=lambda rules: rules[-1:]
        ),
    },
    levels={
        "possible": Level(
            points=2,
            cases=(
                BatchOfJob(text="two nodes", sizes=(16, 8, 8, 12, 32)),
                BatchOfJob(text="an odd model", sizes=(24, 8, 12, 20, 36)),
            ),
            praise="what is left breaks no rule, and nothing is missing",
        ),
        "reasons": Level(
            points=2,
            again=True,
            cases=(
                BatchOfJob(text="two nodes", sizes=(16, 8, 8, 12, 32), reasons=True),
                BatchOfJob(text="an odd model", sizes=(24, 8, 12, 20, 36), reasons=True),
            ),
            praise="each layout is counted once, at the first rule that it breaks",
        ),
        "edges": Level(
            points=1,
            cases=(
                BatchOfJob(text="one GPU", sizes=(1, 8, 8, 12, 4), room=168.0, reasons=True),
                BatchOfJob(text="nothing fits", sizes=(8, 8, 8, 12, 16), room=1.0, reasons=True),
                BatchOfJob(text="512 GPUs", sizes=(512, 8, 64, 80, 1024), reasons=True, calls=True),
            ),
            praise="also where nothing is possible, and the memory of a layout is computed only if all else is right",
        ),
    },
    hints=(
        "Three loops: tp and pp over the divisors of gpus, and the micro-batch over 1, 2, 4 and 8.",
        "dp is what is left: gpus // (tp * pp). If that does not come out even, the first rule is broken.",
        "Write the rules as pairs of a name and a condition, in their order. The first condition that holds names the "
        "rule, and if none does, the layout is possible.",
        "gigabytes(...) is the last rule, and it should be asked only if no other one is broken. A chain of if and "
        "elif does that by itself.",
    ),
)
