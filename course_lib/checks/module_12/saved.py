"""12.6: a run that saves whole checkpoints alone, keeps the newest, and stops on all ranks when one gets a signal."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from course_lib.checks.kit.own_tensors import wrong_tensors
from course_lib.checks.kit.said import plural
from course_lib.checks.kit.script import Ran, ScriptExercise, Start
from course_lib.checks.kit.spec import Level

_WIDTHS, _ROWS, _STEPS, _EVERY = (6, 8, 3), 8, 12, 2  # two digits, which sorted as text come before one
_FOLDER = "checkpoints"
_NAME = re.compile(r"step_\d+\.pt")
_WRITTEN = re.compile(r"^step (\d+): file (\d+) is (.+)$", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class _Ends(Start):
    """How the first start ends: by a signal in this step on rank 1, or killed while it writes after this step."""

    signal: str = ""
    step: int = 0
    keep: int = 2

    def __str__(self) -> str:
        if not self.signal:
            return f"{super().__str__()}, killed while it writes after step {self.step}"
        when = f"in step {self.step}" if self.step else "before the group is there"
        return f"{super().__str__()}, {self.signal} {when}"

    @property
    def made(self) -> int:
        """Steps of the first start."""
        return max(self.step, 1)

    @property
    def kept(self) -> int:
        """The last step of which there is a whole checkpoint then."""
        return self.made if self.signal else self.step - _EVERY


def _model() -> nn.Module:
    """The one that stands in the learner's file."""
    return nn.Sequential(nn.Linear(_WIDTHS[0], _WIDTHS[1]), nn.GELU(), nn.Linear(_WIDTHS[1], _WIDTHS[2])).double()


def _task(case: _Ends, seed: int) -> dict[str, Any]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1039 * seed + 59)
        weights = _model().state_dict()
        batches = [
            (torch.randn(_ROWS, _WIDTHS[0]).double(), torch.randint(_WIDTHS[2], (_ROWS,))) for _ in range(_STEPS)
        ]
    ends = {"signal": case.signal, "step": case.step}
    return {"weights": weights, "batches": batches, "rate": 0.02, "every": _EVERY, "keep": case.keep, "ends": ends}


def _trained(task: Mapping[str, Any], *, renewed: int = 0, left_out: int = 0) -> dict[str, Tensor]:
    """One device's weights; `renewed`: after so many steps AdamW forgets, `left_out`: so many steps are not made."""
    model = _model()
    model.load_state_dict(task["weights"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=task["rate"])
    for number, (x, y) in enumerate(task["batches"], start=1):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        if number != left_out:
            optimizer.step()
        if number == renewed:
            optimizer = torch.optim.AdamW(model.parameters(), lr=task["rate"])
    return model.state_dict()


def _verdict(case: _Ends, ran: Ran) -> str | None:
    """How many steps each start has made, then which checkpoints are left, then what is in the last one."""
    task = dict(ran.task)
    if reason := _wrong_steps(case, ran):
        return reason
    folder = ran.folder / _FOLDER
    found = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    due = [f"step_{step}.pt" for step in range(_STEPS, 0, -_EVERY)][: case.keep]
    if found != sorted(due):
        return f"in the end {_FOLDER} holds {', '.join(found) or 'nothing'}, and {' and '.join(due[::-1])} are due"
    if reason := _not_renamed(ran, due[0]):
        return reason
    last = ran.saved(f"{_FOLDER}/{due[0]}")
    if not isinstance(last, dict) or {"step", "weights", "optimizer"} - last.keys():
        return f"{due[0]} is to hold a dict with 'step', 'weights' and 'optimizer'"
    if last["step"] != _STEPS:
        return f"{due[0]} says that it is of step {last['step']}"
    return wrong_tensors(
        last["weights"],
        _trained(task),
        start=task["weights"],
        instead={
            "the second start has the weights, and an AdamW that remembers no step": _trained(task, renewed=case.kept)
        },
        tolerance=1e-9,
    )


def _not_renamed(ran: Ran, last: str) -> str | None:
    """By what `write` has printed: a checkpoint is to get its name when it is whole, and by a rename."""
    printed = "".join(ended[0].printed for ended in ran.starts)
    written = [(step, int(inode), Path(path)) for step, inode, path in _WRITTEN.findall(printed)]
    for step, _, path in written:
        if path.parent.name == _FOLDER and _NAME.fullmatch(path.name):
            return f"after step {step} it writes into {path.name} itself, so a kill leaves half a file under this name"
    inodes = [inode for step, inode, _ in written if last == f"step_{step}.pt"]
    if (ran.folder / _FOLDER / last).stat().st_ino not in inodes:
        return f"{last} is a copy of what was written, and while it was made, half a file stood under this name: rename"
    return None


def _wrong_steps(case: _Ends, ran: Ran) -> str | None:
    """By the gradients that are averaged in each step: one flat tensor of all of them."""
    whole = sum(tensor.nbytes for tensor in ran.task["weights"].values())
    first, second = (
        [sum(call.operation == "all_reduce" and call.bytes == whole for call in one.calls) for one in ended]
        for ended in ran.starts
    )
    for rank, made in enumerate(first):
        if made != case.made:
            text = f"the first start makes {plural(made, 'step')} on rank {rank}, and {case.made} are due"
            why = (
                "a signal was sent, so that all ranks stop after the same step"
                if made == _STEPS
                else ("the step in which the signal came is the last one" if made > case.made else "")
            )
            return text + f": {why}" * bool(why)
    due = _STEPS - case.kept
    for rank, made in enumerate(second):
        if made != due:
            text = f"the second start makes {plural(made, 'step')} on rank {rank}, and {due} are due: "
            if made == _STEPS:
                return text + "it has found no whole checkpoint and begins anew"
            last = f"the newest whole checkpoint is that of step {case.kept}"
            return text + last + (", which is missing" if made > due else "")
    return None


_SAVED = ScriptExercise(
    key="12.6",
    title="your own checkpoints, and a signal",
    task=_task,
    verdict=_verdict,
    levels={
        "signal": Level(
            points=3,
            cases=(
                _Ends(world_size=2, then=2, signal="SIGUSR1", step=3),
                _Ends(world_size=2, then=2, signal="SIGTERM"),
            ),
            praise="one rank gets a signal, and all save after the same step, and end well",
        ),
        "killed": Level(
            points=2,
            again=True,
            cases=(_Ends(world_size=4, then=2, step=10, keep=1),),
            praise="and a job that is killed while it writes has lost nothing but the steps since the last checkpoint",
        ),
    },
    hints=(
        "A handler of a signal runs between any two lines of Python, also in the middle of a step. So it should do one "
        "thing only: remember that it was called. Who looks there, and when?",
        "One rank has been told to stop, and the others do not know. At the end of each step all-reduce one number "
        "with dist.ReduceOp.MAX: then all of them know, in the same step.",
        "Write into another name in the same folder, and let rank 0 call os.replace(written, final) afterwards. It "
        "happens at once: whoever looks finds the whole file under the final name, or none.",
        "Old checkpoints may go only when the new one has its name. Sort them by the number and not by the text, "
        "since 'step_10.pt' comes before 'step_2.pt' there.",
    ),
)
