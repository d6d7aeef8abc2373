"""Which rows a run trains on: a rank is killed, more ranks go on, and none is read twice and none is lost."""

from __future__ import annotations

import os
import signal
import time
from functools import partial

import cloudpickle
import torch.distributed as dist

from course_lib.cli import train_run
from course_lib.cli.main import main
from course_lib.training import step_folders, trainer
from course_lib.training.batches import Batches

STEPS, ROWS = 24, 96  # an epoch
TEXT = b"".join(bytes([row]) + bytes(15) for row in range(ROWS)) + b"\0"  # a row's first token is its number
SMALL = ("batch=4", "sequence=16", "model=tiny_gpt", f"steps={STEPS}", "checkpoint_every=4")
SHARE = trainer.share


class Noted(Batches):
    """Batches of which each rank notes the rows that it trains on; at a certain step one rank is killed."""

    def batch(self, step):
        if step == self.killed_at and dist.get_rank() == 1:
            while step_folders.latest(self.folder) is None:  # which a thread writes meanwhile
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGKILL)
        trainer.share = partial(self.share, step)
        return super().batch(step)

    def share(self, step, batch, rank, world_size):
        mine = SHARE(batch, rank, world_size)
        with open(self.notes, "a") as file:
            file.write(f"{step} {rank} {' '.join(map(str, mine[0][:, 0].tolist()))}\n")
        return mine


def run(monkeypatch, folder, notes, *overrides, killed_at=None):
    """The run's status, and for each step the rows that its ranks have read, one rank after the other."""

    def batches(run):
        made = Noted(text=TEXT, batch_size=run.batch, sequence=run.sequence, seed=run.seed)
        made.__dict__.update(folder=run.out, notes=notes, killed_at=killed_at)
        return made

    monkeypatch.setattr(train_run, "make_batches", batches)
    status = main(["train", *SMALL, *overrides, f"out={folder}"])
    lines = sorted([*map(int, line.split())] for line in notes.read_text().splitlines())
    steps = {step: [row for at, _, *rows in lines if at == step for row in rows] for step, *_ in lines}
    return status, steps


def test_killed_on_two_ranks_and_gone_on_with_four_every_row_is_read_once_and_in_order(tmp_path, monkeypatch, capsys):
    monkeypatch.delenv("RANK", raising=False)
    cloudpickle.register_pickle_by_value(__import__(__name__))
    folder = tmp_path / "run"
    status, first = run(monkeypatch, folder, tmp_path / "first", "dp=2", killed_at=14)
    assert status == 1 and "died" in capsys.readouterr().err
    done = step_folders.step_of(step_folders.latest(folder))
    status, then = run(monkeypatch, folder, tmp_path / "then", "dp=4")
    assert status == 0 and [*then] == [*range(done, STEPS)] and 4 <= done <= 12
    read = [*(first[step] for step in range(done)), *(then[step] for step in range(done, STEPS))]
    whole = Batches(text=TEXT, batch_size=4, sequence=16)
    assert read == [whole.batch(step)[0][:, 0].tolist() for step in range(STEPS)]
    assert sorted(row for rows in read for row in rows) == [*range(ROWS)]
