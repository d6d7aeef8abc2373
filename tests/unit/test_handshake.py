"""Who does not know the secret gets a random number and nothing else, and nobody waits for who says nothing."""

from __future__ import annotations

import os
import socket
import struct
import threading

import pytest

from course_lib.ranks import handshake
from course_lib.ranks.handshake import Refused, admit, dial, new_secret

HELLO = {"kind": "work", "pool": 1, "rank": 3}


@pytest.fixture
def listener():
    with socket.create_server(("127.0.0.1", 0)) as one:
        yield one


def answered(listener, secret, dialer):
    """What became of both ends."""
    found = {}

    def listen():
        wire, _ = listener.accept()
        with wire:
            try:
                found["hello"] = admit(wire, secret)
            except OSError as error:
                found["refused"] = error

    thread = threading.Thread(target=listen)
    thread.start()
    try:
        found["dialer"] = dialer(listener.getsockname()[1])
    except OSError as error:
        found["dialer"] = error
    thread.join()
    return found


def test_two_ends_that_know_the_secret_have_a_connection(listener):
    secret = new_secret()

    def dialer(port):
        with dial("127.0.0.1", port, secret, HELLO) as wire:
            return wire.gettimeout()

    assert answered(listener, secret, dialer) == {"hello": HELLO, "dialer": None}


def test_a_dialer_without_the_secret_is_refused_and_learns_nothing(listener):
    found = answered(listener, new_secret(), lambda port: dial("127.0.0.1", port, new_secret(), HELLO))
    assert isinstance(found["refused"], Refused) and isinstance(found["dialer"], Refused) and "hello" not in found


def test_a_listener_without_the_secret_gets_no_rank(listener):
    """An impostor at the notebook's address accepts everybody."""

    def accept():
        wire, _ = listener.accept()
        with wire:
            wire.sendall(os.urandom(32))
            wire.recv(4096)
            wire.sendall(os.urandom(32))

    thread = threading.Thread(target=accept)
    thread.start()
    with pytest.raises(Refused, match="who listens there does not know the secret"):
        dial("127.0.0.1", listener.getsockname()[1], new_secret(), HELLO)
    thread.join()


def test_a_proof_cannot_be_used_twice(listener):
    """It answers one random number, and the next connection asks with another one."""
    secret, kept = new_secret(), []

    class Recorder(socket.socket):
        def sendall(self, data, *flags):
            kept.append(data)
            super().sendall(data, *flags)

    def record(port):
        make = socket.create_connection
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(socket, "create_connection", lambda *words, **options: _as(Recorder, make(*words, **options)))
            dial("127.0.0.1", port, secret, HELLO).close()

    assert answered(listener, secret, record)["hello"] == HELLO

    def replay(port):
        with socket.create_connection(("127.0.0.1", port)) as wire:
            wire.recv(32)
            wire.sendall(kept[0])
            return wire.recv(32)

    found = answered(listener, secret, replay)
    assert isinstance(found["refused"], Refused) and found["dialer"] == b""


def _as(kind, wire):
    wire.settimeout(None)
    return kind(fileno=wire.detach())


@pytest.mark.parametrize(
    "said", [b"", b"x" * 10, bytes(64) + struct.pack("=I", 2**31)], ids=["nothing", "part", "much"]
)
def test_what_is_no_proof_ends_soon(listener, monkeypatch, said):
    monkeypatch.setattr(handshake, "LIMIT_S", 0.3)

    def dialer(port):
        with socket.create_connection(("127.0.0.1", port), timeout=5) as wire:
            wire.sendall(said)
            heard = b""
            while piece := wire.recv(100):
                heard += piece
            return len(heard)

    found = answered(listener, new_secret(), dialer)
    assert isinstance(found["refused"], OSError)
    assert found["dialer"] == 32 or isinstance(found["dialer"], ConnectionError)  # a random number, or hung up
