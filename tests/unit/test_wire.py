"""The wire between the notebook and a rank, without either."""

from __future__ import annotations

import os
import socket
import threading

import pytest

from course_lib.ranks.wire import Kind, NotebookEnd, RankEnd


@pytest.fixture
def ends():
    notebook, rank = socket.socketpair()
    with rank:
        end = NotebookEnd(notebook)
        yield end, RankEnd(rank), rank
        end.close()


def test_half_a_message_is_no_message_and_nobody_waits_for_the_rest(ends):
    notebook, _, rank = ends
    other, far = socket.socketpair()
    with other, far:
        RankEnd(far).answer(b"content", number=3)
        frame = other.recv(100)
    assert notebook.take() == []
    rank.sendall(frame[:-1])
    assert notebook.take() == []
    rank.sendall(frame[-1:])
    assert notebook.take() == [(Kind.ANSWER, 3, os.getpid(), b"content")]


def test_a_message_that_nobody_reads_stays_in_part(ends):
    notebook, rank, _ = ends
    content = os.urandom(10**6)
    notebook.put(7, content)
    assert 0 < notebook.unsent <= len(content)
    heard = []
    reader = threading.Thread(target=lambda: heard.append(rank.hear()))
    reader.start()
    while notebook.unsent:
        notebook.flush()
    reader.join()
    assert heard == [(Kind.ANSWER, 7, os.getpid(), content)]


def test_a_long_answer_comes_in_parts_between_which_others_may_speak(ends):
    notebook, rank, _ = ends
    content = os.urandom(100_000)
    rank.answer(content, number=1)
    rank.say("é" * 10, number=1)
    found = []
    while len(found) < 2:
        found += notebook.take()
    assert found == [(Kind.ANSWER, 1, os.getpid(), content), (Kind.OUTPUT, 1, os.getpid(), ("é" * 10).encode())]


def test_a_rank_that_is_gone(ends):
    notebook, _, rank = ends
    rank.close()
    notebook.put(1, b"anybody?")
    assert notebook.unsent == 0
    with pytest.raises(EOFError):
        notebook.take()
