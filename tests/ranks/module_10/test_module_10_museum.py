"""Wrong averages that the identities catch, and two clusters with one copy on the wire between them."""

from __future__ import annotations

import re

import pytest
import torch
from ladder_models import EVEN, Toy

from course_lib.config import TrainConfig
from course_lib.costs.comm.lossy_messages import top_k_bytes
from course_lib.less import top_k
from course_lib.parallel.table.mesh import make_mesh
from course_lib.ranks import ledger, run_ranks
from course_lib.training import Nesterov, Trainer, fully_shard, gossip, local, replicate
from course_lib.training.gossip_technique import TRACKER
from course_lib.verify import museum
from course_lib.verify.identities import NotHeld, climb_identities, identities_of
from tests.ranks.module_10.test_module_10_lossy import ITEM, SIZES


@pytest.mark.parametrize("name", museum.LOSSY_BUGS)
def test_each_bug_breaks_the_identity_that_it_says_first(name):
    bug = museum.LOSSY_BUGS[name]
    with pytest.raises(NotHeld, match=f"^{re.escape(bug.breaks)}: off by"):
        climb_identities(identities_of(bug.method))


def test_the_sound_one_holds_all():
    climb_identities(identities_of(museum.SOUND_LOSSY))


def test_the_residual_that_is_added_late_has_the_better_loss_and_ten_times_the_bytes():
    def train(method):
        def run():
            config = TrainConfig(learning_rate=0.5)
            apply = (replicate(lossy=lambda local: method, broadcast_buffers=False),)
            torch.manual_seed(0)
            trainer = Trainer(Toy().double(), config, mesh=make_mesh(dp=2), apply=apply)
            return [trainer.step(EVEN.batch(step)) for step in range(40)]

        return sum(run_ranks(run, 2)[0][-10:]), ledger().bytes_sent(0)

    late, right = train(museum.LOSSY_BUGS["added_after"].method), train(museum.SOUND_LOSSY)
    assert late[0] < right[0] and late[1] > 3 * right[1]


# Two clusters.


@pytest.mark.parametrize(
    ("apply", "one_copy"),
    [
        ((replicate(), local(1)), sum(SIZES) * ITEM),
        ((replicate(), local(1, Nesterov())), sum(SIZES) * ITEM),
        ((replicate(), gossip("complete")), sum(SIZES) * ITEM),
        ((fully_shard(), local(1)), sum(SIZES) * ITEM),
        ((replicate(lossy=top_k(0.1)),), sum(top_k_bytes(size, 0.1, ITEM) for size in SIZES)),
    ],
    ids=["local", "outer step", "gossip", "shards", "compressed"],
)
def test_one_copy_crosses_the_wire_between_two_clusters(apply, one_copy):
    def steps(count):
        def run():
            trainer = Trainer(Toy().double(), TrainConfig(), mesh=make_mesh(across=2, dp=2), apply=apply)
            trainer.over_shares = lambda numbers: [[float(n)] * 4 for n in numbers]
            for step in range(count):
                trainer.step(EVEN.batch(step))

        run_ranks(run, 4)
        matrix = ledger().matrix()
        return [sum(matrix[a][b] for a in here for b in there) for here, there in (((0, 1), (2, 3)), ((2, 3), (0, 1)))]

    one, two = steps(1), steps(2)
    assert [b - a for a, b in zip(one, two, strict=True)] == [one_copy, one_copy]


def test_what_is_frozen_is_no_mean_of_copies():
    """A third of three equal numbers need not be one of them."""

    def run():
        trainer = Trainer(Toy(frozen=True).double(), TrainConfig(), mesh=make_mesh(dp=3), apply=(local(5),))
        trainer.step(EVEN.batch(0))
        return trainer.parameters()["inner.weight"], trainer.local.parameters["inner.weight"].detach()

    assert all(torch.equal(told, own) for told, own in run_ranks(run, 3))


def test_a_tracker_takes_one_step_for_each_update_however_many_backwards_came_before():
    def run():
        config = TrainConfig()
        trainer = Trainer(Toy().double(), config, mesh=make_mesh(dp=2), apply=(gossip("ring", track=True),))
        for step in (0, 1):
            trainer.compute_gradients(EVEN.batch(step))
        added = {name: gradient.flatten().clone() for name, gradient in trainer.local.gradients().items()}
        trainer.update()
        return added, dict(trainer.apart.memory.kinds[TRACKER])

    for added, trackers in run_ranks(run, 2):
        assert added.keys() == trackers.keys()
        assert all(torch.equal(added[name], trackers[name]) for name in added)
