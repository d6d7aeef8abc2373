"""Right answers to 04.1, 04.9 and 04.10, written in other ways than the solutions; how rounding is judged."""

from __future__ import annotations

import gc

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F

from course_lib import comm
from course_lib.checks import check
from course_lib.checks.kit.gradients import differing
from course_lib.checks.module_04.halves import HALVES, train_half
from course_lib.checks.module_04.tied import tied_step

# 04.1 ----------------------------------------------------------------------------------------------------------------


def without_detach(half, inputs, targets, shape):
    """Send takes numbers only."""
    if dist.get_rank() == 1:
        return train_half(half, inputs, targets, shape)
    y = half(inputs)
    comm.send(y, 1)
    y.backward(comm.recv(torch.empty(shape), 1))
    return None


def row_by_row(half, inputs, targets, shape):
    if dist.get_rank() == 0:
        return train_half(half, inputs, targets, shape)
    x = comm.recv(torch.empty(shape), 0).requires_grad_()
    loss = sum(F.cross_entropy(*row) for row in zip(half(x), targets, strict=True)) / len(targets)
    loss.backward()
    comm.send(x.grad, 0)
    return loss.item()


def zeroes_first(half, *given):
    half.zero_grad()
    return train_half(half, *given)


def names_float32(half, inputs, targets, shape):
    if dist.get_rank() == 0:
        return train_half(half, inputs, targets, shape)
    x = comm.recv(torch.empty(shape, dtype=torch.float32), 0).requires_grad_()
    loss = F.cross_entropy(half(x), targets)
    loss.backward()
    comm.send(x.grad, 0)
    return loss.item()


def sends_float32(half, inputs, targets, shape):
    if dist.get_rank() == 1:
        return names_float32(half, inputs, targets, shape)
    y = half(inputs)
    comm.send(y.detach().float(), 1)
    y.backward(comm.recv(torch.empty(shape, dtype=torch.float32), 1))
    return None


def names_float32_and_halves(half, *given):
    told = names_float32(half, *given)
    for p in half.parameters():
        p.grad /= 2
    return told


# 04.9 ----------------------------------------------------------------------------------------------------------------


def forwards(half, parts, width):
    """All of them: each micro-batch's input and output on this rank."""
    kept = []
    for inputs, _ in parts:
        if dist.get_rank() == 0:
            kept.append((inputs, half(inputs)))
            comm.send(kept[-1][1].detach(), 1)
        else:
            x = comm.recv(torch.empty(len(inputs), width), 0).requires_grad_()
            kept.append((x, half(x)))
    return kept


def backwards_of_rank_0(kept):
    for _, y in kept:
        y.backward(comm.recv(torch.empty_like(y), 1))


def at_once(half, parts, width, loss_of):
    """One backward for all micro-batches on rank 1, from a loss of all its outputs."""
    kept = forwards(half, parts, width)
    if dist.get_rank() == 0:
        return backwards_of_rank_0(kept)
    loss = loss_of([y for _, y in kept], [targets for _, targets in parts])
    loss.backward()
    for x, _ in kept:
        comm.send(x.grad, 0)
    return loss.item()


def one_loss_of_all(*given):
    return at_once(*given, lambda outputs, targets: F.cross_entropy(torch.cat(outputs), torch.cat(targets)))


def summed_losses(*given):
    def loss_of(outputs, targets):
        losses = [F.cross_entropy(*pair, reduction="sum") for pair in zip(outputs, targets, strict=True)]
        return sum(losses) / sum(map(len, targets))

    return at_once(*given, loss_of)


def backwards_from_the_last(half, parts, width):
    kept, total = forwards(half, parts, width), sum(len(targets) for _, targets in parts)
    if dist.get_rank() == 0:
        return backwards_of_rank_0(kept[::-1])
    loss = 0
    for (x, y), (_, targets) in reversed(list(zip(kept, parts, strict=True))):
        part = F.cross_entropy(y, targets, reduction="sum") / total
        part.backward()
        comm.send(x.grad, 0)
        loss += part.item()
    return loss


def divides_at_the_end(half, parts, width):
    """Sums first, and the gradients divided by all rows once."""
    kept, total, loss = forwards(half, parts, width), sum(len(targets) for _, targets in parts), 0
    for (x, y), (_, targets) in zip(kept, parts, strict=True):
        if dist.get_rank() == 0:
            y.backward(comm.recv(torch.empty_like(y), 1))
        else:
            part = F.cross_entropy(y, targets, reduction="sum")
            part.backward()
            comm.send(x.grad, 0)
            loss += part.item() / total
    for parameter in half.parameters():
        parameter.grad /= total
    return loss if dist.get_rank() == 1 else None


def one_f_one_b(half, parts, width):
    """Rank 0 is one micro-batch ahead; rank 1 does each backward at once."""
    total, loss, kept = sum(len(targets) for _, targets in parts), 0, []
    if dist.get_rank() == 1:
        for inputs, targets in parts:
            x = comm.recv(torch.empty(len(inputs), width), 0).requires_grad_()
            part = F.cross_entropy(half(x), targets, reduction="sum") / total
            part.backward()
            comm.send(x.grad, 0)
            loss += part.item()
        return loss
    for number, (inputs, _) in enumerate(parts):
        y = half(inputs)
        kept.append((y, comm.isend(y.detach(), 1)))
        if number:
            end_of(*kept[number - 1])
    end_of(*kept[-1])
    return None


def end_of(y, sending):
    gradient = comm.recv(torch.empty_like(y), 1)
    sending.wait()
    y.backward(gradient)


def names_float32_in_gpipe(half, parts, width):
    if dist.get_rank() == 0:
        return backwards_of_rank_0(forwards(half, parts, width))
    kept = [comm.recv(torch.empty(len(x), width, dtype=torch.float32), 0).requires_grad_() for x, _ in parts]
    loss = F.cross_entropy(half(torch.cat(kept)), torch.cat([targets for _, targets in parts]))
    loss.backward()
    for x in kept:
        comm.send(x.grad, 0)
    return loss.item()


# 04.10 ---------------------------------------------------------------------------------------------------------------


def one_after_the_other(*given):
    """Rank 0 sends first, the last rank receives first."""
    loss, tied, rank, last = tied_step(*given), given[1], dist.get_rank(), dist.get_world_size() - 1
    if tied is None or last == 0:
        return loss
    own = tied.grad.clone()
    if rank == 0:
        comm.send(own, last)
        tied.grad += comm.recv(torch.empty_like(own), last)
    else:
        tied.grad += comm.recv(torch.empty_like(own), 0)
        comm.send(own, 0)
    return loss


def there_and_back(*given):
    """The last rank's part to rank 0, the sum back."""
    loss, tied, rank, last = tied_step(*given), given[1], dist.get_rank(), dist.get_world_size() - 1
    if tied is not None and last > 0:
        if rank == last:
            comm.send(tied.grad, 0)
            tied.grad = comm.recv(torch.empty_like(tied), 0)
        else:
            tied.grad += comm.recv(torch.empty_like(tied), last)
            comm.send(tied.grad, last)
    return loss


def names_float32_for_the_copy(*given):
    loss, tied, last = tied_step(*given), given[1], dist.get_world_size() - 1
    if tied is not None and last > 0:
        theirs = torch.empty(tied.shape, dtype=torch.float32)
        for handle in [comm.irecv(theirs, last - dist.get_rank()), comm.isend(tied.grad, last - dist.get_rank())]:
            handle.wait()
        tied.grad += theirs
    return loss


def all_reduce_of_the_two(*given):
    loss, tied, last = tied_step(*given), given[1], dist.get_world_size() - 1
    if last == 0:
        return loss
    two = dist.new_group([0, last])
    if tied is not None:
        comm.all_reduce_(tied.grad, group=two)
    return loss


ANSWERS = {
    "04.1": (without_detach, row_by_row, zeroes_first),
    "04.9": (one_loss_of_all, summed_losses, backwards_from_the_last, divides_at_the_end, one_f_one_b),
    "04.10": (one_after_the_other, there_and_back, all_reduce_of_the_two),
}


@pytest.mark.parametrize(
    ("exercise", "answer"), [(exercise, answer) for exercise, answers in ANSWERS.items() for answer in answers]
)
def test_a_right_answer_passes_however_it_is_written(exercise, answer):
    assert check(exercise, answer).passed


@pytest.mark.parametrize(
    ("exercise", "part", "answer"),
    [
        ("04.1", "edges", names_float32),
        ("04.1", "values", sends_float32),
        ("04.9", "gradients", names_float32_in_gpipe),
        ("04.10", "bytes", names_float32_for_the_copy),
    ],
)
def test_a_right_answer_may_name_float32(exercise, part, answer):
    assert check(exercise, answer, part=part).passed


def test_an_answer_that_names_float32_is_judged_as_strictly_in_it():
    found = check("04.1", names_float32_and_halves)
    assert found.points == 0
    assert found.reason == "2 ranks, a 6-4-2 MLP, 8 rows: your gradient is exactly 1/2 of the reference"


# What a failed answer leaves -----------------------------------------------------------------------------------------


def fails_with_a_message_under_way(stage, tied, inputs, targets, shape):
    receiving = comm.irecv(torch.empty(shape), 1 - dist.get_rank())
    raise RuntimeError(receiving.what)


def collects_garbage(*given):
    gc.collect()
    return tied_step(*given)


def test_a_failed_answer_s_handle_does_not_warn_in_the_next_check(capsys):
    assert "irecv from" in check("04.10", fails_with_a_message_under_way).reason
    assert "nobody adds them" in check("04.10", collects_garbage).reason
    assert "dropped before wait" not in capsys.readouterr().out


# Rounding ------------------------------------------------------------------------------------------------------------

WANT = torch.tensor([1.0, -2.0])


def reason_of(got):
    return differing({(0, "w"): got}, {(0, "w"): WANT}, (), {})


def test_what_is_nearly_right_is_not_called_one_time_the_reference():
    assert "w on rank 0 is off by 3e-05 x its largest number, more than rounding" in reason_of(WANT * 1.00003)


def test_a_factor_near_one_has_its_digits():
    assert "exactly 1.0005 x the reference" in reason_of(WANT * 1.0005)


def test_values_are_judged_in_float64_and_bytes_in_float32():
    """In float32 a sum whose terms cancel would look wrong, added up in another order."""
    for level in HALVES.levels.values():
        dtypes = [(case.look, HALVES.inputs(case, 0).dtype) for case in level.cases]
        assert set(dtypes) <= {(False, torch.float64), (True, torch.float32)}
        assert dtypes[0] == (False, torch.float64)
    assert check("04.1", row_by_row, seed=5).passed
