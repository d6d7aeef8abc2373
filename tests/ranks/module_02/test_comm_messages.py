"""Learners' own messages: what two sides who disagree are told, and receives that are posted early."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from course_lib import comm
from course_lib.ranks import RankError, ledger, run_ranks


def first_to_second(sent, expected):
    """Rank 0 sends `sent` to rank 1, which receives into `expected`."""
    if dist.get_rank() == 0:
        comm.send(sent, 1)
        return None
    return comm.recv(expected, 0)


@pytest.mark.parametrize(
    ("sent", "expected", "text"),
    [
        (torch.ones(8), torch.zeros(4), "rank 0 sends 8 of float32, rank 1 expects 4 of float32"),
        (torch.ones(2), torch.zeros(4), "rank 0 sends 2 of float32, rank 1 expects 4 of float32"),
        (torch.ones(4), torch.zeros(4, dtype=torch.int32), "rank 0 sends 4 of float32, rank 1 expects 4 of int32"),
    ],
)
def test_a_receiver_with_room_for_another_message_is_told(sent, expected, text):
    rule = "; both sides of a message name the same length and dtype; receive into a tensor like the one that is sent"
    with pytest.raises(RankError, match=f"rank 1 failed .*ValueError: recv: {text}{rule}"):
        run_ranks(first_to_second, 2, sent, expected)
    _, received = run_ranks(first_to_second, 2, torch.ones(3), torch.zeros(3))
    assert received.tolist() == [1.0] * 3


def test_a_label_is_not_in_the_ledger():
    run_ranks(first_to_second, 2, torch.ones(5, dtype=torch.bfloat16), torch.zeros(5, dtype=torch.bfloat16))
    assert [(event.kind, event.nbytes) for event in sorted(ledger().events, key=lambda e: e.rank)] == [
        ("send", 10),
        ("recv", 10),
    ]


def all_receives_first():
    """Each rank posts the receives from all others, sends to all, then waits: no order of sending is wrong."""
    rank, p = dist.get_rank(), dist.get_world_size()
    inbox = [torch.full((other + 1,), -1.0) for other in range(p)]
    receiving = [comm.irecv(inbox[other], other) for other in range(p) if other != rank]
    sending = [comm.isend(torch.full((rank + 1,), float(rank)), other) for other in range(p) if other != rank]
    for handle in (*receiving, *sending):
        handle.wait()
    return [inbox[other].tolist() for other in range(p) if other != rank]


def test_asynchronous_messages_of_different_lengths():
    assert run_ranks(all_receives_first, 4) == [
        [[float(other)] * (other + 1) for other in range(4) if other != rank] for rank in range(4)
    ]
    assert ledger().matrix() == [[4 * (rank + 1) * (rank != other) for other in range(4)] for rank in range(4)]


def test_receives_of_a_ring_follow_one_another():
    run_ranks(lambda: comm.all_reduce(torch.ones(1000)), 4)
    for rank in range(4):
        received = [event for event in ledger().events if (event.rank, event.kind) == (rank, "recv")]
        assert len(received) == 6
        assert all(one.end_s <= other.start_s for one, other in zip(received, received[1:], strict=False))


def scalars_and_gradients():
    loss = (torch.ones(2, requires_grad=True) * (dist.get_rank() + 1)).sum()
    weight = torch.nn.Parameter(torch.ones(3))
    comm.all_reduce_(weight)
    total = comm.all_reduce(loss)
    return total.item(), total.requires_grad, weight.tolist()


def test_tensors_that_require_gradients_are_reduced_outside_the_graph():
    assert run_ranks(scalars_and_gradients, 3) == [(12.0, False, [3.0] * 3)] * 3


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: comm.reduce_scatter(torch.tensor(1.0)), "reduce_scatter: a tensor without dimensions on rank 0; "),
        (lambda: comm.all_gather(torch.tensor(1.0)), "all_gather: a tensor without dimensions on rank 0; "),
        (
            lambda: comm.all_reduce(torch.ones(2), algorithm="hierarchical", node_size=-1),
            r"all_reduce: node_size=-1 with 2 ranks; all nodes hold equally many; choose one of \[1, 2\]",
        ),
    ],
)
def test_what_cannot_be_split_is_refused_on_all_ranks(call, text):
    with pytest.raises(RankError, match=f"all ranks failed .*ValueError: {text}"):
        run_ranks(call, 2)
    assert run_ranks(lambda: comm.all_reduce(torch.ones(1)).item(), 2) == [2.0] * 2
