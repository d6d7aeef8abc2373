"""What a pipeline sends at its cuts, when it computes, and what it holds: the run against lists and formulas."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from pipeline_models import GPT, LLAMA, ROWS, numbers, pipeline, staged, tokens
from torch import nn

from course_lib import comm
from course_lib.comm import EmulatedClock
from course_lib.config import TrainConfig
from course_lib.costs import comm_time
from course_lib.costs.comm.ddp import ddp_wrapping
from course_lib.costs.comm.pipeline import pipeline_step
from course_lib.hardware import Link
from course_lib.models.decoder import Decoder
from course_lib.ranks import ledger, run_ranks
from course_lib.schedules import Compute, Durations, SendActivation, SendGradient, held, make_schedule, time_schedule

CASES = [  # name, p, m, v
    *[("gpipe", 1, 2, 1), ("gpipe", 2, 4, 1), ("1f1b", 2, 4, 1), ("zb-h1", 2, 6, 1), ("interleaved", 2, 4, 2)],
    *[("gpipe", 3, 4, 1), ("1f1b", 3, 2, 1), ("zb-h1", 3, 6, 1), ("interleaved", 3, 3, 2)],
    *[("gpipe", 4, 6, 1), ("1f1b", 4, 12, 1), ("zb-h1", 4, 6, 1), ("interleaved", 4, 4, 2)],
]
cases = pytest.mark.parametrize(("name", "p", "m", "v"), CASES)


def steps(name, p, m, v, model, number_of_steps):
    torch.manual_seed(0)
    trainer = pipeline(TrainConfig(), name, p, m, v, model=model)
    for _ in range(number_of_steps):
        trainer.step(tokens(0))


def total(costs, p):
    return [
        (sum(cost.sent_bytes[rank] for cost in costs), sum(cost.messages[rank] for cost in costs)) for rank in range(p)
    ]


def measured(events, p):
    return [(events.bytes_sent(rank), events.messages(rank)) for rank in range(p)]


@cases
def test_bytes_at_the_cuts_equal_the_formula(name, p, m, v):
    run_ranks(steps, p, name, p, m, v, "tied", 2)
    sequence = tokens(0)[0].shape[1]
    cut_bytes = [ROWS // m * sequence * LLAMA.hidden_size * 4] * (p * v - 1)
    tied_bytes = LLAMA.vocab_size * LLAMA.hidden_size * 4
    step = pipeline_step(cut_bytes, n_ranks=p, n_microbatches=m, tied_bytes=tied_bytes)
    assert measured(ledger().of("isend"), p) == total([step, step], p)
    assert [ledger().of("irecv").bytes_received(rank) for rank in range(p)] == [2 * n for n in step.received_bytes]
    lengths = [parameter.numel() for parameter in Decoder(LLAMA).parameters()]
    loss = comm_time("broadcast", "tree", world_size=p, length=1, itemsize=8, root=p - 1)
    norm = comm_time("all_reduce", "ring", world_size=p, length=1, itemsize=8)
    every = [ddp_wrapping([(lengths, 4)], world_size=p), *[step, loss, norm] * 2]
    assert measured(ledger(), p) == total(every, p)


def test_an_untied_model_sends_nothing_but_activations_and_their_gradients():
    run_ranks(steps, 2, "1f1b", 2, 4, 1, "GPT", 1)
    tied = pipeline_step([1], n_ranks=2, n_microbatches=4, tied_bytes=GPT.vocab_size * GPT.hidden_size * 4)
    assert ledger().of("isend").messages(0) == tied.messages[0] == 5
    run_ranks(steps, 2, "1f1b", 2, 4, 1, "tied and frozen", 1)  # a frozen copy needs no gradient
    assert ledger().of("isend").messages(0) == 4


LINK = Link(name="toy", alpha_s=20e-6, bandwidth_bytes_per_s=1e9, source="a test", date="2026-11")
WIDTH, SLOWDOWN = 8, 20
DURATIONS = Durations(forward_s=1e-3, backward_input_s=1.2e-3, backward_weight_s=0.8e-3)
STRAGGLER = Durations(forward_s=2e-3, backward_input_s=2.4e-3, backward_weight_s=1.6e-3)


def wide(n_stages):
    """One layer for each stage, all alike."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, WIDTH), *(nn.Linear(WIDTH, WIDTH) for _ in range(n_stages - 1)))


def paced(schedule, durations, clock):
    trainer = staged(wide(schedule.n_stages), TrainConfig(), schedule, durations=durations)
    comm.ledger.clear()
    with comm.emulated(clock):
        trainer.compute_gradients(numbers(0))


def agree(schedule, durations):
    """Run on the clock, and hold each computation and message against its slot."""
    p = schedule.n_ranks
    run_ranks(paced, p, schedule, durations, EmulatedClock(inside=LINK, slowdown=SLOWDOWN))
    message_s = LINK.time_s(ROWS // schedule.n_microbatches * WIDTH * 4)
    slots = time_schedule(schedule, durations, message_s=message_s)
    computed = [slot for slot in slots if isinstance(slot.instruction, Compute)]
    length = max(slot.end_s for slot in computed)
    assert max(event.end_s for event in ledger().events if event.kind == "compute") == pytest.approx(length, rel=0.1)
    for rank in range(p):
        events = [event for event in ledger().events if event.rank == rank]
        kinds = [
            ([event for event in events if event.kind == "compute"], Compute),
            ([event for event in events if event.operation == "isend"], SendActivation | SendGradient),
        ]
        for happened, kind in kinds:
            planned = [slot for slot in slots if slot.rank == rank and isinstance(slot.instruction, kind)]
            assert len(happened) == len(planned)
            for event, slot in zip(happened, planned, strict=True):
                assert event.start_s == pytest.approx(slot.start_s, abs=0.1 * DURATIONS.forward_s)
                assert event.end_s == pytest.approx(slot.end_s, abs=0.1 * DURATIONS.forward_s)


@cases
def test_the_timeline_on_the_clock_is_the_simulated_one(name, p, m, v):
    of_rank = Durations(  # so that a stage takes DURATIONS
        forward_s=v * DURATIONS.forward_s,
        backward_input_s=v * DURATIONS.backward_input_s,
        backward_weight_s=v * DURATIONS.backward_weight_s,
    )
    agree(make_schedule(name, p, m, stages_per_rank=v), of_rank)


@pytest.mark.parametrize("name", ["gpipe", "1f1b", "zb-h1"])
def test_a_straggler_is_where_the_simulation_has_it(name):
    agree(make_schedule(name, 3, 4), [DURATIONS, STRAGGLER, DURATIONS])


class Counter:
    """How many tensors autograd keeps besides weights, and the most."""

    def __init__(self, model):
        self.weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
        self.now = self.most = self.all = 0

    def keep(self, tensor):
        is_weight = tensor.untyped_storage().data_ptr() in self.weights
        return tensor if is_weight else Kept(self, tensor)


class Kept:
    def __init__(self, counter, tensor):
        self.counter, self.tensor = counter, tensor
        counter.now += 1
        counter.all += 1
        counter.most = max(counter.most, counter.now)

    def __del__(self):
        self.counter.now -= 1


def hold(schedule):
    """What the executor and autograd counted on this rank."""
    trainer = staged(wide(schedule.n_stages), TrainConfig(), schedule)
    unused = trainer.engine.pipeline.held
    assert (unused.in_flight, unused.stashed) == (0, 0)
    trainer.output(numbers(0)[0])
    counter = Counter(trainer.model)
    with torch.autograd.graph.saved_tensors_hooks(counter.keep, lambda kept: getattr(kept, "tensor", kept)):
        trainer.compute_gradients(numbers(0))
    return trainer.engine.pipeline.held, trainer.engine.pipeline.stashed_bytes, counter.most, counter.all, counter.now


@cases
def test_activations_are_held_as_the_list_says(name, p, m, v):
    """Counted twice: by the executor, on what it keeps for backward, and by autograd, on what it saves."""
    schedule = make_schedule(name, p, m, stages_per_rank=v)
    results = run_ranks(hold, p, schedule)
    for rank, (found, stashed_bytes, most, every, left) in enumerate(results):
        want = held(schedule, rank)
        assert found == want
        rows, inputs = ROWS // m, 6 if rank == 0 else WIDTH
        assert stashed_bytes == want.stashed * rows * (inputs + WIDTH) * 4
        assert left == 0
        if rank < p - 1 and p > 1:  # all its stages save alike; the last one has a loss too
            assert most * m * v == want.in_flight * every


def test_in_real_time_the_ledger_has_every_computation():
    def work():
        trainer = staged(wide(2), TrainConfig(), make_schedule("zb-h1", 2, 3))
        comm.ledger.clear()
        trainer.compute_gradients(numbers(0))

    run_ranks(work, 2)
    letters = {"forward": "F", "backward input": "B", "backward weight": "W"}
    for rank, order in enumerate(["FFBWFBWBW", "FBFBWFBWW"]):
        events = [event for event in ledger().events if event.rank == rank and event.kind == "compute"]
        assert "".join(letters[event.operation] for event in events) == order
        assert all(before.end_s <= after.start_s for before, after in pairwise(events))
