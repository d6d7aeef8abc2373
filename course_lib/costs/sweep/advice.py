"""Before training: what does not divide, what every rank has whole, what a GPU needs, and which flags make it fit.

The flags are those of `python -m course_lib train`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Any, Literal

from course_lib.config import ParallelConfig
from course_lib.config.parallel import tp_widths
from course_lib.costs.sweep.gpu_memory import gpu_memory
from course_lib.costs.sweep.job import Job
from course_lib.split import divisors

Flags = tuple[str, ...]  # as one types them
_SHOWN = 3  # ways with the fewest flags: those that need least
_MOST_RANKS = 2**14  # so far is looked for more of them
_STATES = ("weights", "gradients", "optimizer's states")  # ZeRO shares them from the last to the first


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A training run in numbers; its micro-batch follows from the job's batch and degrees."""

    job: Job  # `batch` is what is computed at a time, of all replicas
    n_microbatches: int = 1  # of a pipeline
    accumulation: int = 1  # how many such batches are one step's
    engine: Literal["own", "torch"] = "own"  # PyTorch's DTensor copies no heads, and cuts into equal parts alone
    is_own_decoder: bool = True  # the sequence of another's is not cut between blocks

    @property
    def counted(self) -> Job:
        """The job with its micro-batch, for `gpu_memory`."""
        return replace(self.job, microbatch=-(-self.job.batch // (self.job.parallel.dp * self.n_microbatches)))

    def spread(self, parallel: ParallelConfig, **changed: Any) -> Asked:
        """The same with other degrees, and other fields of the job."""
        return replace(self, job=replace(self.job, parallel=parallel, **changed))


def indivisible(asked: Asked) -> list[str]:
    """What the ranks cannot share so, each with the nearest degrees that no rule forbids."""
    tp, rules = asked.job.parallel.tp, _rules(asked)
    return [f"{what} over tp={tp}; {_nearest(asked, tp)}" for what, holds in rules.items() if not holds(tp)]


def uneven(asked: Asked) -> list[str]:
    """Of what some ranks have one more than others; only our own engine cuts so."""
    tp = asked.job.parallel.tp
    return [
        f"{size} {what} over tp={tp}, some ranks have one more; {_nearest(asked, tp, size)}"
        for what, size in _widths(asked).items()
        if size % tp and asked.engine == "own"
    ]


def _rules(asked: Asked) -> dict[str, Callable[[int], bool]]:
    """By what is shared along tp, whether so many ranks can share it."""
    model, strict = asked.job.model, asked.engine == "torch"
    heads, kv = model.n_heads, model.n_kv_heads
    rules: dict[str, Callable[[int], bool]] = {}
    if "attention" not in asked.job.whole:
        rules[f"{heads} heads"] = lambda tp: heads % tp == 0
        rules[f"{kv} heads of keys and values"] = lambda tp: (
            heads % tp > 0 or kv % tp == 0 or (tp % kv == 0 and not strict)  # the first is said already
        )
    if strict and {"embedding", "head"} & asked.job.whole:
        rules["a vocabulary that stays whole"] = lambda tp: tp == 1  # PyTorch's loss is of parts of the logits
    if strict:
        rules |= {f"{size} {what}": partial(_divides, size) for what, size in _widths(asked).items()}
    return rules


def _divides(size: int, parts: int) -> bool:
    return size % parts == 0


def _nearest(asked: Asked, tp: int, size: int = 0) -> str:
    """The next degrees below and above at which all rules hold, and which divide `size`."""
    rules, shared = _rules(asked).values(), asked.job.parallel.sequence_parallel
    most = asked.job.sequence if shared else _MOST_RANKS**2
    heads = asked.job.model.n_heads if "attention" not in asked.job.whole else None
    cut = size or heads or next(iter(_widths(asked).values()), 1)
    legal = [n for n in divisors(cut) if shared < n <= most and all(holds(n) for holds in rules)]
    below = next((n for n in reversed(legal) if n < tp), None)
    above = next((n for n in legal if n > tp), None)
    near = [f"tp={n}" for n in (below, above) if n is not None]
    return f"nearest that divide: {' and '.join(near)}" if near else "no tp above 1 does"


def replicated(asked: Asked) -> list[str]:
    """What several ranks have the same of."""
    model, parallel = asked.job.model, asked.job.parallel
    found = list[str]()
    if "attention" not in asked.job.whole and (copies := parallel.tp // model.n_kv_heads) > 1:
        found.append(f"each head of keys and values, of {model.n_kv_heads}, is on {copies} of tp={parallel.tp} ranks")
    if parallel.shards > 1 and (whole := _STATES[: 3 - parallel.zero_stage]):
        is_last = parallel.zero_stage == _last_stage(parallel)
        next_stage = "" if is_last else f"; zero_stage={parallel.zero_stage + 1} shares {whole[-1]}"
        words = ", ".join(whole[:-1]) + f" and {whole[-1]}" if whole[1:] else whole[0]
        alike = f"dp={parallel.dp}" + f" x cp={parallel.cp}" * (parallel.cp > 1)
        found.append(f"each of {alike} ranks has all {words} of its part{next_stage}")
    return found


def _last_stage(parallel: ParallelConfig) -> int:
    """Of ZeRO: the stages of a pipeline share the optimizer's states alone."""
    return 3 if parallel.pp == 1 else 1


def ways_to_fit(
    asked: Asked, room: int, is_taken: Callable[[Flags], bool] = lambda flags: True
) -> list[tuple[Flags, int]]:
    """The fewest flags with which a GPU of `room` bytes is large enough, each with the bytes it then needs.

    The ranks stay as many, unless nothing else does it. A shorter sequence is a way of its own. `is_taken` has the last
    word on a way: whoever gives it knows rules that are not here.
    """
    ways = _fewest(_fitting(asked, asked, room), is_taken)
    if sequence := _longest(asked, room):
        shorter = asked.spread(asked.job.parallel, sequence=sequence)
        ways += [((f"sequence={sequence}",), _total(shorter))] if is_taken((f"sequence={sequence}",)) else []
    return ways or _more_ranks(asked, room, is_taken)


def _fitting(asked: Asked, ranks: Asked, room: int) -> list[tuple[Flags, int]]:
    """Every way on the ranks of another, the fewest flags first, then the least memory."""
    found = [(_flags(asked, one), total) for one in _changes(ranks) if (total := _total(one)) <= room]
    return sorted(found, key=lambda way: (len(way[0]), way[1]))


def _fewest(found: Sequence[tuple[Flags, int]], is_taken: Callable[[Flags], bool]) -> list[tuple[Flags, int]]:
    """Of those that are taken, the first with as few flags as any."""
    ways: list[tuple[Flags, int]] = []
    for flags, total in found:
        if len(ways) == _SHOWN or (ways and len(flags) > len(ways[0][0])):
            break
        if is_taken(flags):
            ways.append((flags, total))
    return ways


def _changes(asked: Asked) -> Iterator[Asked]:
    """Each legal choice of the flags that save memory, on as many ranks."""
    job, parallel = asked.job, asked.job.parallel
    ranks = parallel.dp * parallel.cp * parallel.tp
    wider = [(cp, tp) for cp in divisors(ranks) if cp >= parallel.cp for tp in divisors(ranks // cp)]
    degrees = [(ranks // (cp * tp), cp, tp) for cp, tp in wider if tp >= parallel.tp]
    recomputing = dict.fromkeys((job.recompute, "layers"))
    sequence_parallel = [shared for shared in (False, True) if shared or not parallel.sequence_parallel]
    stages = range(parallel.zero_stage, _last_stage(parallel) + 1)
    for (dp, cp, tp), recompute, shared, stage in product(degrees, recomputing, sequence_parallel, stages):
        if dp % parallel.ep or (job.nf4 and tp > 1):
            continue  # of whose ranks ep shares the experts; codes are not cut
        other = replace(parallel, dp=dp, cp=cp, tp=tp, sequence_parallel=shared, zero_stage=stage)
        batch = max(job.batch, other.dp * asked.n_microbatches)
        one = asked.spread(other, recompute=recompute, batch=batch)
        if _is_legal(one):
            yield one


def _is_legal(asked: Asked) -> bool:
    """Whether `train` takes it."""
    parallel = asked.job.parallel
    shared = parallel.zero_stage == 0 or parallel.shards > 1
    sequence, experts = asked.job.sequence // parallel.cp, asked.job.model.n_experts > 1
    own = asked.engine == "own" and asked.is_own_decoder
    by_torch = asked.engine == "own" or parallel.tp == 1 or parallel.zero_stage != 1  # its ZeRO-1 takes no DTensors
    cut = parallel.cp == 1 or (own and sequence > 0)
    positions = not parallel.sequence_parallel or (asked.is_own_decoder and not experts and 1 < parallel.tp <= sequence)
    return shared and by_torch and cut and positions and all(holds(parallel.tp) for holds in _rules(asked).values())


def _flags(asked: Asked, other: Asked) -> Flags:
    """What one has to type to come from one to the other."""
    was, now = asked.job.parallel, other.job.parallel
    axes = [axis for axis in ("dp", "cp", "tp") if axis != "cp" or max(was.cp, now.cp) > 1]
    spread = " ".join(f"{axis}={getattr(now, axis)}" for axis in axes)
    degrees = () if (was.dp, was.cp, was.tp) == (now.dp, now.cp, now.tp) else (spread,)
    batch = () if asked.job.batch == other.job.batch else (f"batch={other.job.batch * asked.accumulation}",)
    stage = () if was.zero_stage == now.zero_stage else (f"zero_stage={now.zero_stage}",)
    kept = () if was.sequence_parallel == now.sequence_parallel else ("sequence_parallel=keep",)
    again = () if asked.job.recompute == other.job.recompute else ("recompute=layers",)
    return (*degrees, *batch, *stage, *kept, *again)


def _longest(asked: Asked, room: int) -> int:
    """The longest shorter sequence with which it fits; 0 if none does."""
    parallel = asked.job.parallel
    least = parallel.cp * (parallel.tp if parallel.sequence_parallel else 1)  # each rank has a position
    low, high = least - 1, asked.job.sequence
    while high - low > 1:
        middle = (low + high) // 2
        fits = _total(asked.spread(asked.job.parallel, sequence=middle)) <= room
        low, high = (middle, high) if fits else (low, middle)
    return low if low >= least else 0


def _more_ranks(asked: Asked, room: int, is_taken: Callable[[Flags], bool]) -> list[tuple[Flags, int]]:
    """The fewest flags on the fewest ranks, twice as many again and again; each replica has a sequence at least."""
    dp = 2 * asked.job.parallel.dp
    while dp * asked.job.parallel.cp * asked.job.parallel.tp <= _MOST_RANKS:
        more = asked.spread(replace(asked.job.parallel, dp=dp))
        if ways := _fewest(_fitting(asked, more, room), is_taken):
            return ways[:1]
        dp *= 2
    return []


def _total(asked: Asked) -> int:
    return int(gpu_memory(asked.counted).total)


def _widths(asked: Asked) -> dict[str, int]:
    """What is cut along tp and is no head."""
    model, whole = asked.job.model, asked.job.whole
    words = {
        "ffn_size": "features of the feed-forward",
        "shared_ffn_size": "of the shared feed-forward",
        "dense_ffn_size": "of the dense feed-forward",
    }
    widths = {words[name]: size for name, size in tp_widths(model, whole).items()}
    if not {"embedding", "head"} <= whole:
        widths["words of the vocabulary"] = model.vocab_size
    return widths
