"""Before PyTorch's own collectives move data, the ranks compare what they are about to do.

A collective in one branch, another shape, dtype or order is silent garbage otherwise, or an abort that nobody can
catch. PyTorch's remedy, `TORCH_DISTRIBUTED_DEBUG=DETAIL`, wraps the default group: DistributedDataParallel crashes on a
wrapped group (torch 2.13), and a message between two ranks spoils the count of the next collective. So this comparison
stands one level lower, where all of PyTorch meets: `dist.all_reduce`, DDP, FSDP2, DTensor and checkpoints end in the
same few operators of `c10d`, and each of them asks here first.

The package's own collectives have compared already (`comm.guard`), or were told not to (`comm.settings(guard=False)`).
"""

from __future__ import annotations

import os
import pickle
import sys
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import partial
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

import course_lib
from course_lib.comm.switches import active
from course_lib.errors import four_parts
from course_lib.ranks.operators import ALIKE, before_each, tensors_in
from course_lib.ranks.stacks import is_own_file

_COMM = os.path.join(os.path.dirname(course_lib.__file__), "comm", "")
_OF_TORCH = (f"{os.sep}torch{os.sep}distributed{os.sep}", f"{os.sep}torch{os.sep}nn{os.sep}parallel{os.sep}")
_BACKWARD = "_engine_run_backward"


@dataclass(frozen=True, kw_only=True)
class Words:
    """What a rank says it is about to do; every field must be the same on all ranks of the group."""

    operation: str
    caller: str  # by which call of the learner's: a metric's all-reduce is not that of DDP's gradients
    device: str = ""
    dtype: str = ""
    shape: str = ""
    reduction: str = ""
    root: int = -1
    ranks: str = ""  # of the group that new_group is to make

    @property
    def call(self) -> str:
        """`all_reduce`, or `all_reduce in backward()`."""
        return self.operation if self.caller == self.operation else f"{self.operation} in {self.caller}"

    def codes(self) -> list[int]:
        """A number for each field, equal on all ranks for equal values, which Python's own hash of a text is not."""
        return [x if isinstance(x, int) else zlib.crc32(x.encode()) for x in vars(self).values()]


_CALL = ("operation", "caller")
_WAY_OUT = {
    **dict.fromkeys(_CALL, "let every rank make the same calls in the same order: look at loops and at every `if`"),
    "device": "put the tensor on the same kind of device on every rank",
    "dtype": "convert to one dtype first, for example x.float()",
    "shape": "pass tensors of the same shape on every rank",
    "ranks": "call dist.new_group for every group on every rank, also on those that are not in it",
}


def install() -> None:
    """Let every collective of this process, from whichever part of PyTorch, compare first. Cost: 1 ms, once."""
    before_each(ALIKE, lambda operator: partial(_compare, *ALIKE[operator]))


def _compare(name: str, alike: str, given: dict[str, Any], group: ProcessGroup) -> None:
    """Nothing, if the guard is off or the package's own collectives have compared already."""
    if active.guard and group.size() > 1 and (caller := _caller()) is not None:
        comparison = Comparison(_words(name, alike, given, caller, group), group)
        comparison.compare()
        if parts := _PARTS.get(name):
            comparison.compare_parts(parts(given))


def _words(name: str, argument: str, given: dict[str, Any], caller: str, group: ProcessGroup) -> Words:
    alike = list(tensors_in(given.get(argument)))
    root = given.get("root_rank")
    return Words(
        operation=name,
        caller=caller or name,
        device=alike[0].device.type if alike else "",
        dtype=_listed(str(x.dtype).removeprefix("torch.") for x in alike),
        shape=_listed(str(tuple(x.shape)) for x in alike),
        reduction=str(given["reduce_op"].op()).rpartition(".")[2] if "reduce_op" in given else "",
        root=-1 if root is None else dist.get_process_group_ranks(group)[root],
    )


class Comparison:
    """The ranks of a group exchange their words; `what` tells the report of a hang what a rank waits in."""

    def __init__(self, mine: Words, group: ProcessGroup) -> None:
        self._mine, self._group = mine, group
        self._is_compared = any(device.type == "cpu" for device in group._device_types)
        self.what = mine.call

    def compare(self) -> None:
        """Raise the same ValueError on all ranks unless all say the same.

        It waits for all of them, as the collective after it will. A group that carries no main memory is left alone.
        Cost: one all-gather of 8 numbers; two more only if something is wrong.
        """
        if not self._is_compared:
            return
        codes = self._gathered(torch.tensor(self._mine.codes(), device="cpu"))
        if all(torch.equal(codes[0], other) for other in codes):
            return
        packed = torch.frombuffer(bytearray(pickle.dumps(self._mine)), dtype=torch.uint8)
        lengths = [int(x) for x in self._gathered(torch.tensor([len(packed)], device="cpu"))]
        padded = torch.zeros(max(lengths), dtype=torch.uint8, device="cpu")
        padded[: len(packed)] = packed
        words = [pickle.loads(bytes(x[:n].tolist())) for x, n in zip(self._gathered(padded), lengths, strict=True)]
        raise ValueError(_mismatch(dict(zip(dist.get_process_group_ranks(self._group), words, strict=True))))

    def compare_parts(self, parts: list[list[int]]) -> None:
        """Raise the same ValueError on all ranks unless each sends to each other one what that one expects.

        `parts` are the numbers that go to each rank of the group, and those that come from each. Lists of another
        length are a mistake that a rank sees alone. Cost: one all-gather of both.
        """
        if not self._is_compared:
            return
        size, operation = self._group.size(), self._mine.operation
        if other := [len(numbers) for numbers in parts if len(numbers) != size]:
            values, rule = f"{other[0]} of {size} parts", "each rank sends a part to each rank, and gets one from each"
            raise ValueError(four_parts(operation, values, rule, "give one for every rank, of no rows if need be"))
        sent, expected = torch.stack(self._gathered(torch.tensor(parts, device="cpu"))).unbind(1)
        wrong = (sent != expected.T).nonzero().tolist()
        if wrong:
            source, target = wrong[0]
            ranks = dist.get_process_group_ranks(self._group)
            values = f"rank {ranks[source]} sends {sent[source, target]} numbers to rank {ranks[target]}"
            values += f", which expects {expected[target, source]} from it"
            rule = "what one rank sends to another is what that one has room for"
            way_out = "what rank i expects from rank j is what rank j gives for rank i: look at both lists"
            raise ValueError(four_parts(operation, values, rule, way_out))

    def _gathered(self, mine: Tensor) -> list[Tensor]:
        """Every rank's tensor. The back end is asked directly: through `dist` this would come here again."""
        everyone = [torch.empty_like(mine) for _ in range(self._group.size())]
        backend: Any = self._group._get_backend(torch.device("cpu"))
        backend.allgather([everyone], [mine]).wait()
        return everyone


def _of_lists(given: dict[str, Any]) -> list[list[int]]:
    """How many numbers a rank sends to each one, and expects from each."""
    return [[x.numel() for x in given[name]] for name in ("input_tensors", "output_tensors")]


def _of_rows(given: dict[str, Any]) -> list[list[int]]:
    """The same of tensors that are cut into rows, evenly if nothing is said."""
    size = ProcessGroup.unbox(given["process_group"]).size()
    parts = []
    for side in ("input", "output"):
        rows = given[side].shape[0] if given[side].dim() else 1
        cut = given[f"{side}_split_sizes"] or [rows // size] * size
        parts.append([n * (given[side].numel() // max(rows, 1)) for n in cut])
    return parts


_PARTS = {"all_to_all": _of_lists, "all_to_all_single": _of_rows}


def _mismatch(words: dict[int, Words]) -> str:
    """Name the first field that differs, and who has which value."""
    for field in fields(Words):
        owners: dict[str, list[int]] = {}
        for rank, said in words.items():
            owners.setdefault(said.call if field.name in _CALL else str(getattr(said, field.name)), []).append(rank)
        if len(owners) > 1:
            values = " and ".join(f"{value} on {_rank_names(ranks)}" for value, ranks in owners.items())
            way_out = _WAY_OUT.get(field.name, f"pass the same {field.name} on every rank")
            if field.name in _CALL:
                return four_parts("collective", values, "all ranks of a group make the same collective", way_out)
            name, rule = words[min(words)].operation, f"all ranks call it with the same {field.name}"
            return four_parts(name, f"{field.name} is {values}", rule, way_out)
    raise AssertionError("two ranks' words have different codes and the same fields")


def _caller() -> str | None:
    """The learner's call that led here: `all_reduce`, or `backward()` of a wrapped model. None: the package's own."""
    frame: FrameType | None = sys._getframe(2)
    found = ""
    while frame is not None:
        file, name = frame.f_code.co_filename, frame.f_code.co_name
        if file.startswith(_COMM):
            return None
        if name == _BACKWARD:
            return "backward()"
        if is_own_file(file):
            return found
        if any(part in file for part in _OF_TORCH) and name != "wrapper" and not name.startswith(("_", "<")):
            found = name
        frame = frame.f_back
    return "backward()"  # autograd's threads on GPUs have no frame of anybody's


def _listed(texts: Iterator[str]) -> str:
    return ", ".join(texts)


def _rank_names(ranks: list[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
