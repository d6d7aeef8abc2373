"""The checkpoints of a run: LATEST names the last whole one, which stays until the next one is whole."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.utils._pytree import tree_map

from course_lib.comm.background import Call
from course_lib.errors import four_parts
from course_lib.training import checkpoint
from course_lib.training.checkpoint import on_first_rank
from course_lib.training.checksums import SUMS
from course_lib.training.trainer import Trainer

_POINTER = "LATEST"


class Background:
    """Writes a run's checkpoints on a thread of its own, while training goes on.

    Where the layout cuts something, each rank writes its pieces into `step-N`, and no rank has the whole; else the
    first one writes `step-N/trainer.pt`. Then the first one writes the pointer, and removes all but the last `keep`
    checkpoints. Killed at any moment, it leaves a pointer to a whole checkpoint, or none.

    All ranks call each method; the thread's ranks talk on a group of their own. At the end of a `with` block all is
    written; if that ends by an error, what was under way is, as far as it could be.
    Memory: a copy of this rank's part of the state.
    Raises: OSError, on all ranks, if the system refuses, by whichever method waits; the last checkpoint is still there.
    """

    def __init__(self, trainer: Trainer, folder: Path, *, keep: int = 1) -> None:
        self.trainer, self.folder, self.keep = trainer, folder, keep
        self._writing: Call | None = None
        local, self._group = trainer.local, None
        if local.everyone is not None:
            self._group = dist.new_group(local.members, backend="gloo", use_local_synchronization=True)

    def __enter__(self) -> Background:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.finish()
        elif self._writing is not None:
            self._writing.wait_silently()

    def save_step(self, step: int, record: Any) -> None:
        """Begin to write what the run needs to go on after `step`: the trainer's state, random states and a record.

        It returns when the state is copied; before, it waits for the checkpoint before, if that is not written yet.
        """
        self.finish()
        self._writing = Call(_prepared(self.trainer, self.folder, step, record, self.keep, self._group))
        threading.Thread(target=self._writing.run, name="checkpoint", daemon=True).start()

    def finish(self) -> None:
        """Return when everything is written."""
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.wait()


def _prepared(
    trainer: Trainer, folder: Path, step: int, record: Any, keep: int, group: ProcessGroup | None
) -> Callable[[], None]:
    """What is left to do once the state is copied, on the ranks of a group."""
    path = folder / f"step-{step}"
    run = {"step": step, "random": _random_states(trainer.local.everyone), "record": record}
    if trainer.local.layout.cutting_axes:
        from course_lib.training import sharded_checkpoint as sharded  # its import takes a second

        pieces = sharded.pieces_of(trainer, run, copy=True)
        write: Callable[[], None] = partial(sharded.write_pieces, pieces, path, group)
    else:
        content = tree_map(_copied, {**trainer.state(), "run": run})
        write = partial(on_first_rank, partial(_write, content, path), group)

    def work() -> None:
        on_first_rank(partial(_make_room, path), group)
        write()
        on_first_rank(partial(_point_to, path, keep), group)

    return work


def _copied(x: Any) -> Any:
    return x.to("cpu", copy=True) if isinstance(x, Tensor) else x


def _make_room(path: Path) -> None:
    """Remove a checkpoint of the same step, which a run that went on from an earlier one has come to again."""
    if path.exists():
        shutil.rmtree(path)


def _write(content: dict[str, Any], path: Path) -> None:
    try:
        checkpoint.write(content, path)
    except BaseException:
        shutil.rmtree(path, ignore_errors=True)
        raise


def _point_to(path: Path, keep: int) -> None:
    """It is whole now; of those before, some stay."""
    with checkpoint.replaced(path.parent / _POINTER) as file:
        file.write(path.name.encode())
    whole = [other for other in path.parent.glob("step-*") if _is_whole(other) and step_of(other) <= step_of(path)]
    kept = sorted(whole, key=step_of)[-keep:]
    for other in path.parent.glob("step-*"):
        if other not in kept:
            shutil.rmtree(other)


def _is_whole(path: Path) -> bool:
    return not path.suffix and ((path / checkpoint.FILE).is_file() or (path / SUMS).is_file())


def latest(folder: Path) -> Path | None:
    """The last whole checkpoint's folder, if there is one.

    Raises: ValueError if the pointer names none.
    """
    pointer = folder / _POINTER
    if not pointer.exists():
        return None
    found = folder / pointer.read_text().strip()
    if not _is_whole(found):
        values, rule = f"{pointer} names {found.name!r}", "it names a folder with a checkpoint"
        raise ValueError(four_parts("train", values, rule, "write another folder's name into it, or train anew"))
    return found


def step_of(checkpoint_folder: Path) -> int:
    """After how many steps it was written."""
    return int(checkpoint_folder.name.removeprefix("step-"))


def resume(trainer: Trainer, folder: Path) -> Any:
    """Take the state of the last checkpoint, if there is one; return its record, else None.

    The random states are taken where as many ranks wrote them: another layout draws other numbers anyway.
    Raises: ValueError if it is truncated, altered, or another model's.
    """
    found = latest(folder)
    if found is None:
        return None
    if (found / checkpoint.FILE).is_file():
        saved = checkpoint.read(found)
        trainer.restore(saved)
        run = saved["run"]
    else:
        from course_lib.training.sharded_checkpoint import load_pieces  # its import takes a second

        run = load_pieces(trainer, found)
    rank, ranks = _seat(trainer.local.everyone)
    if len(run["random"]) == ranks:
        _set_random_state(run["random"][rank])
    return run["record"]


def drop(folder: Path) -> None:
    """Remove all checkpoints of a run: the pointer first."""
    (folder / _POINTER).unlink(missing_ok=True)
    for one in folder.glob("step-*"):
        shutil.rmtree(one)


def _seat(group: ProcessGroup | None) -> tuple[int, int]:
    """This rank's number among all that train, and how many they are."""
    return (0, 1) if group is None else (group.rank(), group.size())


def _random_states(group: ProcessGroup | None) -> list[dict[str, Tensor]]:
    """Of every rank."""
    mine = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        mine["cuda"] = torch.cuda.get_rng_state()
    states = [mine] * _seat(group)[1]
    if group is not None:
        dist.all_gather_object(states, mine, group=group)
    return states


def _set_random_state(state: dict[str, Tensor]) -> None:
    torch.set_rng_state(state["cpu"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])
