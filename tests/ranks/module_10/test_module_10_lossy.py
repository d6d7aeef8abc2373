"""Averages that lose something: told to lose nothing they climb the whole ladder, and their bytes are the formula's."""

from __future__ import annotations

from math import prod

import pytest
import torch
import torch.distributed as dist
from ladder_models import EVEN, STEPS, UNEVEN, Toy, alone
from ladder_models import VOCABULARY as ROWS
from sequence_models import alone as decoder_alone
from sequence_models import batches, model_of

from course_lib.config import TrainConfig
from course_lib.costs.comm.collectives import comm_time
from course_lib.costs.comm.less import double_squeeze_time, gather_time, gossip_time, power_sgd_time, sum_time
from course_lib.costs.comm.lossy_messages import qsgd_bytes, rand_k_bytes, sign_bytes, top_k_bytes
from course_lib.less import mixing, neighbours, qsgd, rand_k, sign, top_k
from course_lib.parallel.table.mesh import make_mesh
from course_lib.ranks import ledger, run_ranks
from course_lib.schedules import make_schedule
from course_lib.split import split_sizes
from course_lib.training import (
    Nesterov,
    Trainer,
    double_squeeze,
    ef21,
    error_feedback,
    fully_shard,
    gossip,
    local,
    neolithic,
    power_sgd,
    replicate,
    stages,
    tensor,
    without_memory,
    zero,
)
from course_lib.verify import RUNGS, assert_parallel_equals
from course_lib.verify.identities import NotHeld, all_identities, climb_identities
from course_lib.verify.identities.identity import Identity

WHOLE = top_k(1.0)
EXACT = {  # told to lose nothing
    "memory": error_feedback(WHOLE),
    "two ways": double_squeeze(WHOLE),
    "two rounds": neolithic(top_k(0.5), 2),
    "EF21": ef21(WHOLE),
    "factors": power_sgd(64),
}
WEIGHTS = ("output", "gradients", "parameters", "loss curve")  # whose rungs have nothing of a rank's own in them


def on(*techniques, **degrees):
    """A maker for the ladder: these techniques on such a mesh, or on all ranks; stages are cut from a decoder."""

    def make(config):
        model = model_of("llama") if degrees.keys() & {"pp", "tp"} else Toy()
        return Trainer(model, config, mesh=make_mesh(**(degrees or {"dp": dist.get_world_size()})), apply=techniques)

    return make


def climbs_beside(apply, degrees, **options):
    if degrees.keys() & {"pp", "tp"}:
        options |= {"data": batches(), "reference": decoder_alone}
    climbs(on(*apply, **degrees), prod(degrees.values()), **options)


def climbs(make, world_size, *, rungs=RUNGS, data=EVEN, reference=alone, **options):
    return assert_parallel_equals(reference, make, data, world_size=world_size, steps=STEPS, rungs=rungs, **options)


@pytest.mark.parametrize(
    ("method", "world_size"), [*((method, 3) for method in EXACT), ("memory", 1), ("two ways", 2), ("factors", 4)]
)
def test_told_to_lose_nothing_it_equals_one_device(method, world_size):
    climbs(on(replicate(lossy=EXACT[method])), world_size, data=UNEVEN)


def test_what_is_tied_or_frozen_and_micro_batches():
    def make(config):
        return Trainer(
            Toy(tied=True, frozen=True), config, mesh=make_mesh(dp=3), apply=[replicate(lossy=EXACT["two ways"])]
        )

    climbs(make, 3, reference=lambda config: alone(config, tied=True, frozen=True))


@pytest.mark.parametrize(
    ("apply", "degrees"),
    [
        ((replicate(lossy=EXACT["memory"]),), {"across": 2, "dp": 2}),
        ((replicate(lossy=EXACT["memory"]),), {"across": 2}),
        ((stages(make_schedule("1f1b", 2, 4)), replicate(lossy=EXACT["factors"])), {"pp": 2, "dp": 2}),
        ((tensor(), replicate(lossy=EXACT["memory"])), {"dp": 2, "tp": 2}),
    ],
    ids=["two clusters", "clusters of one", "stages", "parts of matrices"],
)
def test_beside_other_axes(apply, degrees):
    climbs_beside(apply, degrees)


@pytest.mark.parametrize(
    ("apply", "degrees"),
    [
        ((local(1),), {"dp": 4}),
        ((local(1, Nesterov(1.0, 0.0)),), {"dp": 3}),
        ((gossip("complete"),), {"dp": 4}),
        ((replicate(), local(1)), {"across": 2, "dp": 2}),
        ((fully_shard(), local(1)), {"across": 2, "dp": 2}),
        ((zero(2), gossip("complete")), {"across": 2, "dp": 2}),
        ((zero(1), local(1, Nesterov(1.0, 0.0))), {"across": 2, "dp": 2}),
        ((replicate(), gossip("complete")), {"across": 2, "dp": 2}),
        ((stages(make_schedule("1f1b", 2, 4)), local(1)), {"pp": 2, "dp": 2}),
    ],
    ids=[
        "local",
        "outer",
        "gossip",
        "clusters",
        "clusters that shard",
        "clusters with ZeRO-2",
        "clusters with ZeRO-1",
        "clusters that gossip",
        "stages",
    ],
)
def test_meeting_everybody_after_each_step_of_sgd_is_data_parallelism(apply, degrees):
    climbs_beside(apply, degrees, rungs=WEIGHTS)


# Bytes.

SIZES = [ROWS * 6, ROWS * 6, 6 * 6, 6]  # of Toy's parameters: embedding, head, inner weight and bias
P, ITEM = 3, 8  # ranks, bytes of a float64
SHAPES = [(ROWS, 6), (ROWS, 6), (6, 6), (6,)]
MESSAGES = {
    "top-k": (top_k(0.1), lambda size: top_k_bytes(size, 0.1, ITEM)),
    "sign": (sign(), lambda size: sign_bytes(size, ITEM)),
    "QSGD": (qsgd(4, 32), lambda size: qsgd_bytes(size, 4, 32, ITEM)),
}
BYTES = {
    **{
        title: (without_memory(compressor), gather_time(sum(map(nbytes, SIZES)), ranks=P))
        for title, (compressor, nbytes) in MESSAGES.items()
    },
    "EF21": (ef21(top_k(0.1)), gather_time(sum(top_k_bytes(size, 0.1, ITEM) for size in SIZES), ranks=P)),
    "rand-k": (
        error_feedback(rand_k(0.1, scaled=False)),
        sum_time(
            sum(rand_k_bytes(size, 0.1, ITEM) for size in SIZES) // ITEM, itemsize=ITEM, ranks=P, algorithm="ring"
        ),
    ),
    "two ways": (
        neolithic(top_k(0.1), 2),
        double_squeeze_time(
            [2 * sum(top_k_bytes(split_sizes(size, P)[rank], 0.1, ITEM) for size in SIZES) for rank in range(P)]
        ),
    ),
    "factors": (power_sgd(2), power_sgd_time(SHAPES, 2, itemsize=ITEM, ranks=P, algorithm="ring")),
}


@pytest.mark.parametrize("method", BYTES)
def test_the_ledger_has_the_bytes_of_the_formula(method):
    lossy, step = BYTES[method]
    assert sent_in_a_step((replicate(lossy=lossy, broadcast_buffers=False),), P) == [*step.sent_bytes]


@pytest.mark.parametrize(
    "topology", ["ring", "static_exponential", "one_peer_exponential", "complete", "grid", "torus"]
)
@pytest.mark.parametrize("track", [False, True])
def test_gossip_sends_to_its_neighbours_alone(topology, track):
    (matrix, *_), model = mixing(topology, 4), sum(SIZES) * ITEM
    degrees = [len(neighbours(matrix, rank).send_to) for rank in range(4)]
    found = sent_in_a_step((gossip(topology, track=track),), 4, before=4)
    assert found == [*gossip_time(degrees, (1 + track) * model).sent_bytes]


def test_local_steps_send_nothing_but_when_they_meet():
    meeting = comm_time("all_reduce", "ring", world_size=P, length=sum(SIZES), itemsize=ITEM)
    assert sent_in_a_step((local(3),), P, before=1) == [0] * P
    assert sent_in_a_step((local(3),), P, before=2) == [*meeting.sent_bytes]


def sent_in_a_step(apply, ranks, before=1):
    """Bytes of each rank in one step, after some others; the trainer's own two rows of numbers are not counted."""

    def steps(count):
        def run():
            trainer = Trainer(Toy().double(), TrainConfig(), mesh=make_mesh(dp=ranks), apply=apply)
            trainer.over_shares = lambda numbers: [[float(n)] * ranks for n in numbers]
            for step in range(count):
                trainer.step(EVEN.batch(step))

        run_ranks(run, ranks)
        return [ledger().bytes_sent(rank) for rank in range(ranks)]

    fewer, more = steps(before), steps(before + 1)
    return [b - a for a, b in zip(fewer, more, strict=True)]


# Identities.


def test_all_identities_hold():
    found = climb_identities()
    assert len(found.off) >= 30 and str(found).count("to the bit") >= 18


def test_an_identity_that_does_not_hold_is_told():
    wrong = Identity(claim="1 = 2", found=lambda: 0.5)
    with pytest.raises(NotHeld, match=r"1 = 2: off by 5\.0e-01; it has to hold within 1e-12; look at what is sent"):
        climb_identities({wrong.claim: wrong})


def test_identities_are_run_on_ranks(monkeypatch):
    """They must fail where no rank starts."""
    from course_lib.verify.identities import averaged, gossiped, trained

    def no_ranks(*_):
        raise RuntimeError("no rank has started")

    for module in (averaged, gossiped, trained):
        monkeypatch.setattr(module, "run_ranks", no_ranks)
    needs = [one for one in all_identities().values() if "QSGD is" not in one.claim and "omega" not in one.claim]
    for one in needs:
        with pytest.raises(RuntimeError):
            one.found()


def test_local_steps_of_adamw_are_not_data_parallelism():
    from course_lib.verify.identities.trained import same_weights

    assert same_weights((local(1),), (replicate(),), optimizer="adamw") > 1e-3


def test_places_of_the_largest_must_not_be_added_up():
    from course_lib.parallel.lossy.feedback import Compressed
    from course_lib.verify.identities import sent

    assert sent.mean_alone(Compressed(top_k(0.1))) > 0.1


# What is refused.


@pytest.mark.parametrize(
    ("apply", "degrees", "said"),
    [
        (lambda: (replicate(), local(2)), {"dp": 2}, "local: applied after replicate; along dp gradients are averaged"),
        (lambda: (fully_shard(), gossip("ring")), {"dp": 2}, "gossip: applied after fully_shard; along dp gradients"),
        (lambda: (replicate(),), {"across": 2}, "Trainer: across=2 without a technique; every axis of several ranks"),
        (lambda: (gossip("star"),), {"dp": 2}, "mixing: topology='star'; not a known topology; choose one of ring"),
        (lambda: (local(0),), {"dp": 2}, "local: every=0; ranks meet after some updates; give every >= 1"),
        (lambda: (power_sgd(0),), {"dp": 2}, "power_sgd: rank=0; a factor has a column; give rank >= 1"),
        (lambda: (neolithic(WHOLE, 0),), {"dp": 2}, "neolithic: rounds=0; something is sent; give rounds >= 1"),
        (lambda: (double_squeeze(rand_k(0.1)),), {"dp": 2}, "double_squeeze: rand-10 %, scaled; a message on two ways"),
        (lambda: (tensor(), replicate(lossy=power_sgd(2))), {"tp": 2}, "power_sgd: tp=2; the factors are a whole mat"),
    ],
)
def test_what_is_refused(apply, degrees, said):
    def text():
        try:
            Trainer(model_of("llama"), TrainConfig(), mesh=make_mesh(**degrees), apply=apply())
        except ValueError as error:
            return str(error)
        return ""

    for found in run_ranks(text, prod(degrees.values())):
        assert found.startswith(said)


def test_codes_have_no_mean():
    def text():
        config = TrainConfig(optimizer="adamw8bit")
        with pytest.raises(
            ValueError, match=r"local: optimizer=adamw8bit; a checkpoint has the ranks' mean, and codes"
        ):
            Trainer(Toy(), config, mesh=make_mesh(dp=2), apply=(local(2),))

    run_ranks(text, 2)


def test_ranks_that_chose_differently_are_told():
    def text():
        every = 2 + dist.get_rank()
        with pytest.raises(ValueError, match="local: every is 2 on rank 0 and 3 on rank 1; all ranks wrap the same"):
            Trainer(Toy(), TrainConfig(), mesh=make_mesh(dp=2), apply=(local(every),))

    run_ranks(text, 2)


def test_the_mean_stands_for_a_while():
    from course_lib.training import at_the_mean

    def run():
        trainer = Trainer(Toy().double(), TrainConfig(), mesh=make_mesh(dp=2), apply=(local(5),))
        for step in range(2):
            trainer.step(EVEN.batch(step))

        def flat(tensors):
            return torch.cat([x.detach().flatten() for x in tensors])

        mine, mean = flat(trainer.local.parameters.values()), flat(trainer.parameters().values())
        with at_the_mean(trainer):
            inside = flat(trainer.local.parameters.values()).clone()
        return mine, mean, inside, flat(trainer.local.parameters.values())

    (mine, mean, inside, after), (other, *_) = run_ranks(run, 2)
    assert torch.equal(inside, mean) and torch.equal(after, mine) and not torch.equal(mine, other)
    assert torch.allclose(mean, (mine + other) / 2, rtol=0, atol=1e-15)
