"""What ranks along one axis have different on purpose, and what a checkpoint of one device makes of it.

Under `local` and `gossip` each rank has its own weights; a lossy average keeps on each rank what it has not sent. One
device would have neither. So a checkpoint has the means of what differs, where any layout finds what it can go on from,
and beside them, under names that end in @, what each rank had: as many ranks as before go on from it bit by bit.
On fewer ranks each takes the mean of some; on more, several take the same. The mean over all ranks stays in both cases,
and with it what the run as a whole has still to send.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from course_lib.parallel.lossy.exchange import Memories
from course_lib.ranks.plain import plain

Parts = dict[str, dict[str, Tensor]]  # by parameter name, by kind: "" the weight, others by the optimizer's names
_KEPT = "kept:"  # before a technique's kinds


def is_beside(kind: str) -> bool:
    """Whether a kind is nothing that one device would have."""
    return "@" in kind or kind.startswith(_KEPT)


@dataclass
class Apart:
    """The ranks along `axis`, whether their weights differ, and what techniques keep on them."""

    axis: str = ""
    own_weights: bool = False
    memory: Memories = field(default_factory=lambda: Memories({}))
    group: ProcessGroup | None = None
    speaks: bool = True  # whether this rank exchanges, and so keeps something, or another one does so for it

    @property
    def rank(self) -> int:
        """This rank's number along the axis."""
        return self.group.rank() if self.group is not None else 0

    @property
    def size(self) -> int:
        """The ranks along the axis."""
        return self.group.size() if self.group is not None else 1

    def mean(self, mine: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Of tensors that differ along the axis the means, the same bit by bit on all its ranks; outside the ledger."""
        if not self.own_weights or self.size == 1:
            return dict(mine)
        found = {}
        for name, x in mine.items():
            copies = [torch.empty_like(x, memory_format=torch.contiguous_format) for _ in range(self.size)]
            dist.all_gather(copies, x.contiguous(), group=self.group)
            found[name] = torch.stack(copies).mean(0)
        return found

    # --- into a checkpoint ---

    def written(self, parts: Parts, trained: Iterable[str]) -> Parts:
        """What this rank has, by the names that a checkpoint has it under."""
        parts = {name: dict(kinds) for name, kinds in parts.items()}
        for name in trained:
            if self.own_weights:
                parts[name] |= self._means_and_own(parts[name])
            for kind, rule in self.memory.rules.items():
                x = self.memory.kinds[kind].get(name)
                if x is None or not self.speaks:
                    continue  # no step so far, or it is another one's
                weight, label = parts[name][""], f"{_KEPT}{kind}"
                if rule == "stretch":
                    x = self._joined(x, weight.numel())
                if rule != "apart":
                    x = x.view(weight.shape)  # and so it is cut as the weight is
                parts[name][f"{label}@{self.rank}" if rule == "own" else label] = x
        return parts

    def _means_and_own(self, kinds: Mapping[str, Tensor]) -> dict[str, Tensor]:
        numbers = {kind: x for kind, x in kinds.items() if x.shape == kinds[""].shape and x.is_floating_point()}
        return self.mean(numbers) | {f"{kind}@{self.rank}": x for kind, x in kinds.items()}

    def _joined(self, stretch: Tensor, length: int) -> Tensor:
        """All ranks' stretches, one after the other."""
        rooms = [stretch.new_empty(len(part)) for part in torch.empty(length, device="meta").tensor_split(self.size)]
        found = [plain(stretch)] * self.size
        dist.all_gather_object(found, plain(stretch), group=self.group)
        return torch.cat([room.copy_(x.tensor()) for room, x in zip(rooms, found, strict=True)])

    def spread(self, parts: Parts) -> Parts:
        """The same with what each rank along the axis has for itself, for whoever writes one file of it."""
        if not self.axis:
            return parts
        mine = {name: {k: plain(x) for k, x in kinds.items() if "@" in k} for name, kinds in parts.items()}
        found = [mine] * self.size
        dist.all_gather_object(found, mine, group=self.group)
        together = {name: dict(kinds) for name, kinds in parts.items()}
        for one in found:
            for name, kinds in one.items():
                together[name] |= {kind: x.tensor() for kind, x in kinds.items()}
        return together

    # --- out of a checkpoint ---

    def asks_for(self, kind: str, there: Collection[str]) -> bool:
        """Whether this rank needs a kind, of those that a checkpoint has of one parameter."""
        if "@" not in kind:
            return not kind.startswith(_KEPT) or kind.removeprefix(_KEPT) in self.memory.rules
        base, rank = kind.split("@")
        return self._has_own(base) and int(rank) in self._sources(_count(base, there))

    def read(self, parts: Mapping[str, Mapping[str, Tensor]], here: Mapping[str, Tensor]) -> Parts:
        """What one device would read, as this rank has it; what techniques keep, they have from here on.

        `parts` has of each parameter the kinds that this rank asks for; what is kept lies where `here` its weight lies.
        """
        for kept in self.memory.kinds.values():
            kept.clear()
        found = {}
        for name, kinds in parts.items():
            bases = dict.fromkeys(kind.split("@")[0] for kind in kinds)
            chosen = {base: self._chosen(base, kinds) for base in bases}
            for base, x in chosen.items():
                if base.startswith(_KEPT) and x is not None:
                    self._keep(base.removeprefix(_KEPT), name, x.to(here[name].device))
            found[name] = {base: x for base, x in chosen.items() if x is not None and not base.startswith(_KEPT)}
        return found

    def _keep(self, kind: str, name: str, x: Tensor) -> None:
        rule = self.memory.rules[kind]
        if rule != "apart":
            x = x.flatten()
        if rule == "stretch":
            x = x.tensor_split(self.size)[self.rank]
        self.memory.keep(kind, name, x.clone())

    def _chosen(self, base: str, kinds: Mapping[str, Tensor]) -> Tensor | None:
        """Of one kind what this rank goes on with; None if it has no use for it."""
        mine = [x for kind, x in kinds.items() if kind.startswith(f"{base}@")]
        if len(mine) > 1 and mine[0].is_floating_point():
            return torch.stack(mine).mean(0)
        return mine[0] if mine else kinds.get(base)

    def _has_own(self, base: str) -> bool:
        """Whether the ranks along the axis have this kind each for itself."""
        if base.startswith(_KEPT):
            return self.memory.rules.get(base.removeprefix(_KEPT)) == "own"
        return self.own_weights

    def _sources(self, count: int) -> list[int]:
        """Whose numbers this rank takes, of `count` ranks that wrote."""
        if count and self.size % count == 0:
            return [self.rank * count // self.size]
        if count % self.size == 0:
            together = count // self.size
            return list(range(self.rank * together, (self.rank + 1) * together))
        return list(range(count))


def _count(base: str, kinds: Collection[str]) -> int:
    """How many ranks have written a kind each for itself."""
    return sum(kind.startswith(f"{base}@") for kind in kinds)
