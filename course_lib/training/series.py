"""The checkpoints of a run: LATEST names the last whole one; two stay, so that one may be damaged."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.utils._pytree import tree_map

from course_lib.comm.background import Call
from course_lib.errors import four_parts
from course_lib.training import checkpoint, step_folders
from course_lib.training.checkpoint import on_first_rank
from course_lib.training.trainer import Trainer

_KEEP = 2


class Background:
    """Writes a run's checkpoints on a thread of its own, while training goes on.

    Where the layout cuts something, each rank writes its pieces into `step-N`, and no rank has the whole; else the
    first one writes `step-N/trainer.pt`. Then the first one writes the pointer, and removes all but the last `keep`
    of the checkpoints that this run has written. Killed at any moment, it leaves a pointer to a whole one, or none.

    All ranks call each method; the thread's ranks talk on a group of their own. At the end of a `with` block all is
    written; if that ends by an error, what was under way is, as far as it could be.
    Memory: a copy of this rank's part of the state.
    Raises: OSError, on all ranks, if the system refuses, by whichever method waits; the last checkpoint is still there.
    """

    def __init__(self, trainer: Trainer, folder: Path, *, keep: int = _KEEP) -> None:
        self.trainer, self.folder, self.keep = trainer, folder, keep
        begun_from = step_folders.latest(folder)  # a run is whoever goes on from its checkpoint
        self.run = (begun_from and step_folders.run_of(begun_from)) or uuid.uuid4().hex
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
        self._writing = Call(self._prepared(step, record))
        threading.Thread(target=self._writing.run, name="checkpoint", daemon=True).start()

    def finish(self) -> None:
        """Return when everything is written."""
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.wait()

    def _prepared(self, step: int, record: Any) -> Callable[[], None]:
        """What is left to do once the state is copied."""
        trainer, group, mark = self.trainer, self._group, partial(step_folders.mark, run=self.run)
        path = self.folder / f"step-{step}"
        content = {"step": step, "random": _random_states(trainer.local.everyone), "record": record}
        if trainer.local.layout.cutting_axes:
            from course_lib.training import sharded_checkpoint as sharded  # its import takes a second

            pieces = sharded.pieces_of(trainer, content, copy=True)
            write: Callable[[], None] = partial(sharded.write_pieces, pieces, path, group, mark)
        else:
            state = tree_map(_copied, {**trainer.state(), "run": content})
            write = partial(on_first_rank, partial(_write, state, path, mark), group)

        def work() -> None:
            on_first_rank(partial(step_folders.make_room, path, self.run), group)
            write()
            on_first_rank(partial(step_folders.point_to, path, self.run, self.keep), group)

        return work


def _copied(x: Any) -> Any:
    return x.to("cpu", copy=True) if isinstance(x, Tensor) else x


def _write(content: dict[str, Any], path: Path, mark: Callable[[Path], None]) -> None:
    try:
        mark(path)
        checkpoint.write(content, path)
    except OSError:  # the mark stays if anything does: the next attempt finds its own folder
        with suppress(OSError):
            (path / step_folders.MARK).unlink()
            path.rmdir()
        raise


class CannotResume(ValueError):
    """The last checkpoint is not what the run can go on from: whatever is said next may not promise that it will."""


def resume(trainer: Trainer, folder: Path) -> Any:
    """Take the state of the last checkpoint, if there is one; return its record, else None.

    The random states are taken where as many ranks wrote them: another layout draws other numbers anyway.
    Raises: CannotResume if it is truncated, altered, another model's, or of something that is no run.
    """
    found = step_folders.latest(folder)
    if found is None:
        return None
    try:
        run = _restored(trainer, found)
    except CannotResume:
        raise
    except ValueError as error:
        raise CannotResume(str(error)) from None
    if not isinstance(run, dict) or not {"random", "record"} <= run.keys():
        _refuse(found, "it says nothing of a run's steps")
    _take_random_state(run["random"], trainer.local.everyone, found)
    return run["record"]


def _restored(trainer: Trainer, found: Path) -> Any:
    """Take the trainer's state, and return what the checkpoint says of its run."""
    if not (found / checkpoint.FILE).is_file():
        from course_lib.training.sharded_checkpoint import load_pieces  # its import takes a second

        return load_pieces(trainer, found)
    saved = checkpoint.read(found)
    try:
        trainer.restore(saved)
    except (KeyError, TypeError, AttributeError, IndexError, RuntimeError) as error:
        _refuse(found, f"its optimizer is not the trainer's ({type(error).__name__}: {error})")
    return saved.get("run")


def _refuse(found: Path, rule: str) -> NoReturn:
    raise CannotResume(four_parts("train", str(found), rule, "take another checkpoint, or train anew"))


def _take_random_state(states: Any, everyone: ProcessGroup | None, found: Path) -> None:
    rank, ranks = _seat(everyone)
    try:
        if len(states) == ranks:
            _set_random_state(states[rank])
    except (KeyError, TypeError, RuntimeError) as error:
        _refuse(found, f"its random states are none ({type(error).__name__})")


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
