"""Rooms for what arrives: lent, given back, and kept by each thread for itself."""

from __future__ import annotations

import threading

import pytest
import torch

from course_lib.comm import rooms


@pytest.fixture(autouse=True)
def nothing_kept():
    rooms.forget()
    yield
    rooms.forget()


def place(room):
    return room.memory.data_ptr()


def test_a_room_is_lent_to_one_call_at_a_time_and_kept_for_the_next():
    x = [torch.zeros(10)]
    first, second = rooms.take(x), rooms.take(x)
    assert place(first) != place(second)
    rooms.give_back([first, second])
    assert [rooms.take(x), rooms.take(x)] == [first, second]  # in the same order, though sizes may differ


def test_one_that_is_too_small_makes_way_for_a_larger_one():
    small, large = [torch.zeros(10)], [torch.zeros(20), torch.zeros(3, 7)]
    rooms.give_back([rooms.take(small)])
    room = rooms.take(large)
    assert room.memory.nbytes == 41 * 4 and [x.shape for x in room.like(large)] == [(20,), (3, 7)]
    rooms.give_back([room])
    assert rooms.take(small) is room


def test_what_lies_in_it_does_not_overlap_and_may_be_of_any_dtype():
    for dtype in (torch.float64, torch.bfloat16, torch.bool, torch.complex64):
        like = [torch.ones(4, dtype=dtype), torch.zeros(0, dtype=dtype), torch.zeros(2, 3, dtype=dtype)]
        room = rooms.take(like)
        for found, wanted in zip(room.like(like), like, strict=True):
            found.copy_(wanted)
        assert all(torch.equal(found, wanted) for found, wanted in zip(room.like(like), like, strict=True))
        rooms.give_back([room])


def test_each_thread_has_its_own_and_can_be_forgotten_alone():
    x, found = [torch.zeros(10)], []
    mine = rooms.take(x)
    rooms.give_back([mine])
    other = threading.Thread(target=lambda: found.append(rooms.take(x)))
    other.start()
    other.join()
    assert found[0] is not mine
    rooms.forget(0)
    again = rooms.take(x)
    assert again is mine
    rooms.give_back([again])
    rooms.forget(threading.get_ident())
    assert rooms.take(x) is not mine


def test_one_that_was_made_for_evaluation_serves_training():
    x = [torch.zeros(10)]
    with torch.inference_mode():
        room = rooms.take(x)
        room.like(x)
        rooms.give_back([room])
    rooms.take(x).like(x)[0].add_(1.0)  # torch refuses this of a tensor that inference made
