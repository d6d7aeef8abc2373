"""Each call gets its own answers and its own text, whatever the ranks have started."""

from __future__ import annotations

import os
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.distributed as dist

from course_lib.ranks import RankError, RankTimeout, run_ranks

STRAY = r"^ranks: process \d+, which rank 1 forked, answered task \d+ as well; .*os\._exit\(0\).*restarted"


def answer_twice(wait_of_child, wait_of_parent):
    is_child = dist.get_rank() == 1 and os.fork() == 0
    time.sleep(wait_of_child if is_child else wait_of_parent)
    return "A"


def answer_b():
    return "B"


def pids():
    return run_ranks(os.getpid, 3)


def test_an_answer_of_a_forked_process_ends_the_call_and_says_why():
    with pytest.raises(RankError, match=STRAY):
        run_ranks(answer_twice, 3, 0.0, 0.3)
    assert run_ranks(answer_b, 3) == ["B"] * 3


def test_an_answer_of_a_forked_process_that_comes_late_is_not_the_next_call_s(capsys):
    assert run_ranks(answer_twice, 3, 0.2, 0.0) == ["A"] * 3
    time.sleep(0.5)
    assert run_ranks(answer_b, 3) == ["B"] * 3
    assert "what a thread or process of an earlier task said is left out" in capsys.readouterr().out


def test_a_forked_process_may_print_and_end(capsys):
    def fork_well():
        child = os.fork()
        if child == 0:
            print("child")
            os._exit(0)
        os.waitpid(child, 0)

    run_ranks(fork_well, 2)
    assert capsys.readouterr().out.splitlines() == ["rank 0 │ child", "rank 1 │ child"]


class Unspeakable(Exception):
    def __str__(self):
        raise RuntimeError("no")


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (KeyboardInterrupt("mine"), "KeyboardInterrupt: mine"),
        (Unspeakable(), r"Unspeakable: \(its text cannot be had: __str__ raises RuntimeError\)"),
    ],
)
def test_every_exception_is_named_and_keeps_the_processes(error, text):
    def fail():
        raise error

    before = pids()
    with pytest.raises(RankError, match=rf"^all ranks failed at line \d+ of test_answers.py `raise error`: {text}$"):
        run_ranks(fail, 3)
    assert pids() == before


def test_a_rank_keeps_its_voice(capsys):
    def hush():
        sys.stdout.close()
        print("still here")

    run_ranks(hush, 2)
    assert capsys.readouterr().out.splitlines() == ["rank 0 │ still here", "rank 1 │ still here"]


def test_a_thread_does_not_print_into_the_next_task(capsys):
    def chatter():
        def speak():
            for _ in range(30):
                time.sleep(0.02)
                print("from the thread")

        threading.Thread(target=speak).start()

    run_ranks(chatter, 1)
    capsys.readouterr()
    run_ranks(lambda: (time.sleep(0.3), print("mine")), 1)
    expected = ["rank 0: what a thread or process of an earlier task said is left out", "rank 0 │ mine"]
    assert capsys.readouterr().out.splitlines() == expected


def test_a_timer_is_of_the_task_that_set_it_an_executor_of_those_that_use_it(capsys):
    def set_both():
        threading.Timer(0.2, print, ("late",)).start()
        threading.workers = ThreadPoolExecutor(1)
        threading.workers.submit(print, "first").result()

    run_ranks(set_both, 1)
    capsys.readouterr()
    run_ranks(lambda: (threading.workers.submit(print, "second").result(), time.sleep(0.4)), 1)
    expected = ["rank 0: what a thread or process of an earlier task said is left out", "rank 0 │ second"]
    assert capsys.readouterr().out.splitlines() == expected


def test_a_collective_that_a_thread_left_under_way_is_named():
    def leave_one():
        if dist.get_rank() == 0:
            threading.Thread(target=lambda: dist.all_reduce(torch.ones(1)), name="sums").start()

    run_ranks(leave_one, 2)
    thread = r"thread 'sums' of rank 0, left running by an earlier task, waits in all_reduce, line \d+ of test_answers"
    with pytest.raises(RankTimeout, match=thread):
        run_ranks(lambda: dist.all_reduce(torch.ones(2)) if dist.get_rank() == 0 else time.sleep(9), 2, timeout=0.5)


def test_ranks_that_wait_in_different_groups_are_told_so():
    def call_with_different_groups():
        small, large = dist.new_group([0, 1]), dist.new_group([0, 1, 2])
        dist.all_reduce(torch.ones(1), group=small if dist.get_rank() == 0 else large)

    with pytest.raises(RankTimeout) as caught:
        run_ranks(call_with_different_groups, 3, timeout=0.7)
    message = str(caught.value)
    assert "rank 0 waits in all_reduce of group [0, 1] (no. " in message
    assert "ranks 1, 2 wait in all_reduce of group [0, 1, 2] (no. " in message
    assert "these groups differ: all ranks of a group must call it with that group" in message


def call_groups_of_two(order):
    """Each rank is in two groups of two: `order` says by rank in which of them it calls, one after the other."""
    made = {ranks: dist.new_group(list(ranks)) for ranks in ((0, 1), (2, 3), (0, 2), (1, 3))}
    mine = {kind: next(made[two] for two in twos if dist.get_rank() in two) for kind, twos in KINDS.items()}
    for kind in order[dist.get_rank()]:
        dist.all_reduce(torch.ones(1), group=mine[kind])


KINDS = {"tp": [(0, 1), (2, 3)], "dp": [(0, 2), (1, 3)]}


def test_waiting_is_followed_through_groups_to_the_rank_that_holds_all_up():
    order = [["tp", "dp"], ["tp", "dp"], ["tp", "dp"], []]
    with pytest.raises(RankTimeout) as caught:
        run_ranks(call_groups_of_two, 4, order, timeout=1.0)
    message = str(caught.value)
    assert "rank 0 waits in all_reduce of group [0, 2], line " in message
    assert "; in the end all of them wait for rank 3; rank 3 has finished" in message and "differ" not in message


def test_groups_in_different_orders_are_told_so():
    with pytest.raises(RankTimeout) as caught:
        run_ranks(call_groups_of_two, 4, [["tp"], ["dp"], ["dp"], ["tp"]], timeout=1.0)
    rule = "these groups differ: all ranks of a group must call it with that group, and groups in the same order"
    assert rule in str(caught.value)


def test_threads_of_the_notebook_take_turns():
    run_ranks(int, 2)
    found = {}

    def call(number):
        found[number] = run_ranks(lambda: (time.sleep(0.1), number)[1], 2)

    threads = [threading.Thread(target=call, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {number: [number] * 2 for number in range(3)}
