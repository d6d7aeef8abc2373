"""How many of the planted bugs the ladder catches, and of how many its first-named cause is the right one.

All bugs are climbed in one call of the ranks, those that plain SGD shows by SGD alone; then each is compared.
`pytest -s` shows the two numbers.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from ladder_models import TEXT, Toy
from planted import RANKS, Planted
from planted_bugs import EARLY, LATE
from planted_fresh import FRESH_EARLY, FRESH_LATE
from planted_heldout import HELD_OUT
from planted_models import frozen, gpt, tied
from planted_unseen import UNSEEN_EARLY, UNSEEN_LATE

from course_lib import comm
from course_lib.ranks import run_ranks
from course_lib.training.batches import Batches
from course_lib.training.trainer import Trainer
from course_lib.verify import RUNGS, NotEqual
from course_lib.verify.alike import ADAMW, Plan
from course_lib.verify.climb import adamw, climb_alone, climb_rank, compare
from course_lib.verify.clipping import norm_that_clips, norms_without_clipping
from course_lib.verify.equality import TOLERANCES
from course_lib.verify.replay import Replay

BATCHES = Batches(text=TEXT, batch_size=13, sequence=5, ragged=True)
PLAN = Plan(batch_of=BATCHES.batch, steps=3, dtype=torch.float64)
LATER = LATE | UNSEEN_LATE | FRESH_LATE
BUGS = EARLY | UNSEEN_EARLY | HELD_OUT | FRESH_EARLY | LATER
SOUND = {f"nothing wrong with {sound.__name__}": Planted(cause="", sound=sound) for sound in (Toy, tied, frozen, gpt)}


def one_device(sound, folder):
    """What the ladder knows of one device: the plan, what it left behind, and what it can be asked."""

    def reference(config):
        return Trainer(sound(), config)

    most = norm_that_clips(norms_without_clipping(reference, PLAN))
    plan = replace(PLAN, adamw=replace(ADAMW, max_norm=most), folder=folder)
    return plan, (climb_alone(reference, plan), adamw(reference, plan, 0, stops=False)), Replay(reference, plan)


def climb_all(names, plans):
    """Each bug's traces on this rank; the guard compares calls, which no bug here gets wrong."""
    every = BUGS | SOUND
    with comm.settings(guard=False, ledger=False):
        return {name: climb_rank(every[name].make, plans[name]) for name in names}


def test_planted_bugs_are_caught_and_their_causes_named(tmp_path):
    """All of them; whoever adds one that is told a wrong cause adds a row to the table of suspects."""
    every = BUGS | SOUND
    known = {bug.sound: one_device(bug.sound, str(tmp_path)) for bug in every.values()}
    plans = {name: known[bug.sound][0] if name in LATER else PLAN for name, bug in every.items()}
    traces = run_ranks(climb_all, RANKS, list(every), plans, timeout=120)
    found = {}
    for name, bug in every.items():
        _, alone, replay = known[bug.sound]
        ranks = [trace[name] for trace in traces]
        try:
            compare(alone, ranks, RUNGS if name in LATER else RUNGS[:5], TOLERANCES[torch.float64], replay)
            found[name] = "", "not caught"
        except NotEqual as error:
            found[name] = error.causes[0], str(error)
    caught = [name for name, bug in BUGS.items() if found[name][1] != "not caught"]
    right = [name for name in caught if found[name][0] == BUGS[name].cause]
    print(f"{len(caught)} of {len(BUGS)} planted bugs are caught, {len(right)} with the right cause first")
    assert len(BUGS) >= 100
    assert {name: text for name, (cause, text) in found.items() if cause != every[name].cause} == {}
