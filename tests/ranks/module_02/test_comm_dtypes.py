"""Which tensors the collectives take, and what they give back: kinds, dtypes, NaN, and no autograd."""

from __future__ import annotations

import os
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch.distributed import ReduceOp

from course_lib import comm
from course_lib.comm import label
from course_lib.comm.opening import ALGORITHMS
from course_lib.ranks import RankError, run_ranks

SENDING = [operation for operation in ALGORITHMS if operation != "barrier"]


def options(operation, algorithm):
    return {"algorithm": algorithm, **({"node_size": 1} if algorithm == "hierarchical" else {})}


def results_that_ask_for_gradients():
    """Every collective and algorithm, native ones too, of a tensor that autograd follows."""
    found = []
    for operation in SENDING:
        for algorithm in (*ALGORITHMS[operation], "native"):
            x = torch.ones(4, requires_grad=True) * 2
            result = getattr(comm, operation)(x, **options(operation, algorithm))
            if result is not None and result.requires_grad:
                found.append((operation, algorithm))
    return found


@pytest.mark.parametrize("world_size", [1, 2], scope="module")
def test_no_collective_keeps_the_autograd_of_this_rank_s_part(world_size):
    assert run_ranks(results_that_ask_for_gradients, world_size) == [[]] * world_size


def refusals(calls):
    """What this rank raises for each call, in text; nothing may hang."""
    found = []
    for operation, dtype, more in calls:
        with pytest.raises(ValueError) as caught:
            getattr(comm, operation)(torch.ones(4).to(dtype), **more)
        found.append(str(caught.value))
    return found


NO_REDUCTION = "torch has no such reduction; pass x in a dtype that has, as float32"
NOT_OF_GLOO = "gloo's own calls do not know this dtype; convert it, or choose"
REFUSED = {
    ("all_reduce", torch.complex64, "MAX"): f"op=MAX of torch.complex64; {NO_REDUCTION}",
    ("reduce", torch.complex128, "MIN"): f"op=MIN of torch.complex128; {NO_REDUCTION}",
    ("reduce_scatter", torch.float8_e4m3fn, "SUM"): f"op=SUM of torch.float8_e4m3fn; {NO_REDUCTION}",
    ("all_reduce", torch.uint16, "SUM"): f"op=SUM of torch.uint16; {NO_REDUCTION}",
    ("all_reduce", torch.int64, "AVG"): "op=AVG of torch.int64; an average needs floats; pass x.float(), or use SUM",
    ("all_reduce", torch.int16, "SUM", "native"): f"torch.int16 with algorithm='native'; {NOT_OF_GLOO} 'hierarchical'",
    ("broadcast", torch.uint16, None, "native"): f"torch.uint16 with algorithm='native'; {NOT_OF_GLOO} 'tree'",
}


@pytest.mark.parametrize("guard", [True, False])
@pytest.mark.parametrize("world_size", [1, 2], scope="module")
def test_what_torch_cannot_reduce_or_send_is_refused_before_anything_is_sent(world_size, guard):
    calls = [
        (name, dtype, ({"op": getattr(ReduceOp, op)} if op else {}) | ({"algorithm": native[0]} if native else {}))
        for name, dtype, op, *native in REFUSED
    ]

    def quietly():
        with comm.settings(guard=guard):
            return os.getpid(), refusals(calls)

    before = run_ranks(os.getpid, world_size)
    for pid, texts in run_ranks(quietly, world_size):
        assert pid in before
        for (operation, *_), text, wanted in zip(REFUSED, texts, REFUSED.values(), strict=True):
            assert text.startswith(f"{operation}: {wanted}"), text
            assert text.count("; ") == 2


def complex_and_short():
    """Of complex numbers the sum and the average; of int16 what from-scratch algorithms do; of complex any gather."""
    rank = dist.get_rank()
    x = torch.tensor([1 + 1j, 2 - 1j]) * (rank + 1)
    sums = [comm.all_reduce(x, op=op, algorithm=a).tolist() for op in (ReduceOp.SUM, ReduceOp.AVG) for a in BOTH]
    short = comm.all_reduce(torch.ones(3, dtype=torch.int16)).tolist()
    gathered = [comm.gather(x[: 2 - rank], length=3, algorithm=a) for a in ("tree", "native")]
    return sums, short, [None if whole is None else whole.tolist() for whole in gathered]


BOTH = ("ring", "native")


def test_complex_numbers_are_added_averaged_and_gathered_as_natively():
    for rank, (sums, short, gathered) in enumerate(run_ranks(complex_and_short, 2)):
        assert sums == [[3 + 3j, 6 - 3j]] * 2 + [[1.5 + 1.5j, 3 - 1.5j]] * 2
        assert short == [2, 2, 2]
        assert gathered == [None if rank else [1 + 1j, 2 - 1j, 2 + 2j]] * 2


def maxima(algorithm):
    x = torch.tensor([1.0, float("nan") if dist.get_rank() == 1 else 2.0])
    return comm.all_reduce(x, op=ReduceOp.MAX, algorithm=algorithm, node_size=1)


def test_a_nan_on_one_rank_makes_every_from_scratch_maximum_nan():
    for algorithm in ALGORITHMS["all_reduce"]:
        for result in run_ranks(maxima, 3, algorithm):
            assert result[0] == 1 and result[1].isnan(), algorithm


def failing(fn, world_size=2):
    with pytest.raises(RankError) as caught:
        run_ranks(fn, world_size)
    assert str(caught.value).startswith("all ranks failed")
    return str(caught.value).split("ValueError: ")[1]


@pytest.mark.parametrize("operation", SENDING)
def test_a_list_is_no_tensor(operation):
    def listed():
        getattr(comm, operation)([1.0, 2.0] if dist.get_rank() else torch.ones(2))

    rule = "ranks exchange the numbers of a tensor; pass torch.tensor(...) of it"
    assert failing(listed) == f"{operation}: a list on rank 1; {rule}"


def test_a_sparse_tensor_is_no_message():
    text = failing(lambda: comm.all_reduce(torch.ones(4).to_sparse() if dist.get_rank() else torch.ones(4)))
    assert text == "all_reduce: a sparse tensor on rank 1; a message is contiguous memory; pass x.to_dense()"


@pytest.mark.parametrize("operation", ["all_gather", "gather"])
def test_uneven_shards_are_told_of_length(operation):
    text = failing(lambda: getattr(comm, operation)(torch.ones(2 - dist.get_rank())))
    assert text == (
        f"{operation}: length is 2 on rank 0 and 1 on rank 1; all ranks must call with the same length; "
        "of uneven shards, pass length=, the rows of the whole, on every rank"
    )


def unlabelled_messages():
    """What arrives with the guard off, and of an empty tensor with the guard on; neither sends a label ahead."""
    full, empty, arrived = torch.arange(3.0), torch.empty(0), []
    with mock.patch.object(label, "of", side_effect=AssertionError("a label")):
        for x, guard in ((full, False), (full[:2], False), (empty, False), (empty, True)):
            with comm.settings(guard=guard):
                arrived += [passed(x), passed_later(x)]
    return arrived


def passed(x):
    into = torch.full_like(x, -1)
    comm.send(x, 1) if dist.get_rank() == 0 else comm.recv(into, 0)
    return into.tolist()


def passed_later(x):
    into = torch.full_like(x, -1)
    (comm.isend(x, 1) if dist.get_rank() == 0 else comm.irecv(into, 0)).wait()
    return into.tolist()


def test_messages_without_the_guard_and_empty_ones():
    assert run_ranks(unlabelled_messages, 2)[1] == [[0.0, 1.0, 2.0]] * 2 + [[0.0, 1.0]] * 2 + [[]] * 4


def test_an_empty_message_waits_for_nobody():
    def only_one_side():
        comm.send(torch.empty(0), 1) if dist.get_rank() == 0 else None
        return dist.get_rank()

    assert run_ranks(only_one_side, 2) == [0, 1]
