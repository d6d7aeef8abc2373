"""Who does not know the secret gets a random number and nothing else, and nobody waits for who says nothing."""

from __future__ import annotations

import os
import shutil
import socket
import struct
import subprocess
import sys
import threading
import time
from contextlib import suppress

import pytest

from course_lib.ranks import handshake
from course_lib.ranks.handshake import Refused, admit, dial, new_secret
from tools.paths import ROOT

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


def test_who_drips_is_let_go_as_well(listener, monkeypatch):
    """A byte in time is no reason to wait for the next one as long again."""
    monkeypatch.setattr(handshake, "LIMIT_S", 0.5)

    def dialer(port):
        started = time.monotonic()
        with socket.create_connection(("127.0.0.1", port)) as wire, suppress(OSError):
            while time.monotonic() - started < 10:
                wire.sendall(b"x")
                time.sleep(0.1)
        return time.monotonic() - started

    found = answered(listener, new_secret(), dialer)
    assert isinstance(found["refused"], OSError) and found["dialer"] < 3 * 0.5


SILENCED = """
import socket, subprocess, threading, time
from course_lib.ranks.handshake import admit, dial, new_secret
subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
secret, admitted = new_secret(), []
with socket.create_server(("127.0.0.1", 0)) as listener:
    def listen():
        wire, _ = listener.accept()
        admit(wire, secret)
        admitted.append(wire)
    thread = threading.Thread(target=listen)
    thread.start()
    dialled = dial("127.0.0.1", listener.getsockname()[1], secret, {})
    thread.join()
time.sleep(0.5)  # all that was sent is acknowledged: only who asks now and then can notice
subprocess.run(["ip", "link", "set", "lo", "down"], check=True)  # nobody hangs up, and nothing comes any more
started = time.monotonic()
try:
    admitted[0].recv(1)
except OSError as error:
    print(type(error).__name__, time.monotonic() - started)
"""


def test_a_machine_that_is_gone_without_a_word_is_noticed():
    """As when its power or its cable fails: a node that is lost is told within five seconds and some."""
    alone = ["unshare", "--net"]
    if not shutil.which("ip") or subprocess.run([*alone, "true"], capture_output=True).returncode:
        pytest.skip("a network of one's own (unshare --net, ip) is not to be had here")
    ran = subprocess.run([*alone, sys.executable, "-c", SILENCED], cwd=ROOT, capture_output=True, text=True, timeout=60)
    name, seconds = ran.stdout.split()
    assert name == "TimeoutError" and float(seconds) < 8, ran.stderr
