"""What can be seen of a failure: all tensors of its rung, what ranks agree on, and what one device says when asked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from course_lib.training.step import count_targets
from course_lib.verify.counted import Cut, counts, is_mean_of_means
from course_lib.verify.equality import Signature, deviation, noise, ratio_of, same, signature
from course_lib.verify.pairs import Pair
from course_lib.verify.ratios import agrees
from course_lib.verify.replay import Change, Replay
from course_lib.verify.trace import AdamWTrace, SgdTrace

_NEARLY = 0.01  # of a deviation may be left by a change that explains it: another eps, another order


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """One failed rung: `wrong` are all its pairs that are not equal, the first of them is what the message names."""

    wrong: Sequence[Pair]
    right: frozenset[str]  # names that are equal on every rank
    alone: SgdTrace
    ranks: Sequence[SgdTrace]
    adamw: Sequence[AdamWTrace]
    replay: Replay
    tolerance: float
    step: int = 0  # whose gradients are wrong
    below: str = ""  # a lower rung that is wrong already and was left out

    @property
    def first(self) -> Pair:
        """The first wrong pair."""
        return self.wrong[0]

    @property
    def rung(self) -> str:
        """Where it shows first."""
        return self.first.rung

    @property
    def n_ranks(self) -> int:
        """p."""
        return len(self.ranks)

    @property
    def n_shares(self) -> int:
        """Into how many a batch is cut."""
        return self.ranks[0].n_shares

    @cached_property
    def n_microbatches(self) -> int:
        """m; where the ranks do not say it, what explains how often each row counts, else 1."""
        said = self.ranks[0].n_microbatches
        if said is not None or not self.counted:
            return said or 1
        most = len(self.targets) // self.n_shares
        cuts = [Cut(targets=self.targets, shares=self.n_shares, parts=m) for m in range(2, most)]
        return next((cut.parts for cut in cuts if all(is_mean_of_means(count, cut) for count in self.counted)), 1)

    @property
    def names(self) -> list[str]:
        """What is wrong on some rank, in the rung's order."""
        return list(dict.fromkeys(pair.name for pair in self.wrong))

    @cached_property
    def wrong_ranks(self) -> list[int]:
        """Where."""
        return sorted({pair.rank for pair in self.wrong})

    @cached_property
    def signature(self) -> Signature:
        """How the first wrong tensor relates to the right one."""
        return _recognise(self.first, self.n_ranks)

    @cached_property
    def ratio(self) -> float | None:
        """The one number by which everything that is wrong is too large; None if there is no such number."""
        pairs = [(pair.got, pair.want) for pair in self.wrong]
        found = [ratio_of(g, w) if g is not None and w is not None and g.shape == w.shape else None for g, w in pairs]
        known = [one for one in found if one is not None]
        if len(known) < len(found) or not all(agrees(one, known[0]) for one in known):
            return None
        return None if agrees(known[0], 1.0) else known[0]

    @cached_property
    def alike(self) -> bool:
        """Whether all ranks hold the same of what is wrong."""
        by_name: dict[str, list[Tensor | None]] = {}
        for pair in self.wrong:
            by_name.setdefault(pair.name, []).append(pair.got)
        return all(
            len(versions) == self.n_ranks
            and all(x is not None and versions[0] is not None and same(x, versions[0]) for x in versions)
            for versions in by_name.values()
        )

    @cached_property
    def rounded_to(self) -> torch.dtype | None:
        """The precision whose rounding all of the errors look like."""
        pairs = [(p.name, p.got, p.want) for p in self.wrong if p.got is not None and p.want is not None]
        fit = [(name, got.double(), want.double()) for name, got, want in pairs if got.shape == want.shape]
        if not fit or len(fit) < len(self.wrong):
            return None
        if self.rung == "AdamW":  # weights move little: what was rounded on the way shows in their updates alone
            start = self.alone.start
            return _noise([(got - start[name], want - start[name]) for name, got, want in fit if name in start])
        return _noise([(got, want) for _, got, want in fit])

    # --- of the gradients ---

    @cached_property
    def targets(self) -> Tensor:
        """How many each row of the batch has. Shapes: (B,)."""
        inputs, targets = self.replay.parts(1, self.step)[0]
        each = [count_targets((inputs[row : row + 1], targets[row : row + 1])) for row in range(len(inputs))]
        return torch.tensor(each)

    @cached_property
    def cut(self) -> Cut:
        """The batch as the ranks share it."""
        return Cut(targets=self.targets, shares=self.n_shares, parts=self.n_microbatches)

    @property
    def is_no_sum_of_rows(self) -> bool:
        """Whether the ranks' gradients are no sum of the rows', however often each counts; these must be known."""
        return self.counted is None and self.replay.row_gradients(self.step) is not None

    @cached_property
    def counted(self) -> list[Tensor] | None:
        """By rank, how often what is wrong in its gradient counts each row of the batch."""
        rows = self.replay.row_gradients(self.step)
        if rows is None:
            return None
        targets = int(self.targets.sum())
        held = [trace.second_gradients if self.step else trace.gradients for trace in self.ranks]
        once = [name for name in self.names if name not in self.alone.tied]  # of others one use may be right
        rows = {name: rows[name] for name in once or self.names if name in rows}
        found = [counts(gradients, rows, targets) for gradients in held]
        return [one for one in found if one is not None] if all(one is not None for one in found) else None

    # --- of AdamW ---

    def replays(self, change: Change, *, late: bool = False) -> bool:
        """Whether one device with this change leaves what each rank has left, or nearly all of it."""
        changed = self.replay.adamw(change, late=late)
        if changed is None:
            return False
        far = max(pair.distance() for pair in self.wrong if pair.name in changed or pair.name == "loss")
        near = max(10 * self.tolerance, _NEARLY * far)
        held = [trace.end if late else trace.half for trace in self.adamw]
        return all(name in one and deviation(one[name], x) <= near for one in held for name, x in changed.items())


def _noise(pairs: Sequence[tuple[Tensor, Tensor]]) -> torch.dtype | None:
    return noise(*(torch.cat([x.flatten() for x in side]) for side in zip(*pairs, strict=True))) if pairs else None


def _recognise(pair: Pair, world_size: int) -> Signature:
    """How the wrong tensor relates to the right one, if both exist."""
    if pair.want is None:
        return Signature(words="exists, but not on one device", kind="extra")
    if pair.got is None:
        return Signature(words="does not exist", kind="missing")
    if pair.got.shape != pair.want.shape:
        words = f"shape {tuple(pair.got.shape)}, one device's is {tuple(pair.want.shape)}"
        return Signature(words=words, kind="shape")
    if pair.replica:
        return Signature(words="not the first rank's copy to the last bit", kind="replica")
    return signature(pair.got, pair.want, world_size)
