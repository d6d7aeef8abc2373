"""Two ends of a connection prove to each other that they know one secret, and send it to nobody.

Who listens on a cluster's network is reached by every process of every user there. A stranger gets a random number and
nothing else, whatever it answers. What is sent afterwards is not encrypted, as nothing of gloo or NCCL is.
Source: challenge and response by HMAC, RFC 2104.
"""

from __future__ import annotations

import hmac
import json
import secrets
import socket
import struct
import time
from typing import Any

_NONCE_BYTES = _PROOF_BYTES = 32
_MOST_BYTES = 4096  # of what a dialer says about itself
_LENGTH = struct.Struct("=I")
LIMIT_S = 10.0  # for the whole of it: who says nothing is let go


class Refused(ConnectionError):
    """The other end does not know the secret, or said nothing."""


def new_secret() -> bytes:
    """A secret for one allocation."""
    return secrets.token_bytes(32)


def dial(address: str, port: int, secret: bytes, hello: dict[str, Any]) -> socket.socket:
    """Connect, prove who one is, and return the connection once the other end has proved the same.

    Raises: OSError if nobody listens there; Refused, which is one.
    """
    end = time.monotonic() + LIMIT_S
    wire = socket.create_connection((address, port), timeout=LIMIT_S)
    try:
        theirs, mine = _receive(wire, _NONCE_BYTES, end), secrets.token_bytes(_NONCE_BYTES)
        said = json.dumps(hello).encode()
        proof = _proof(secret, b"dial", theirs, mine, said)
        wire.sendall(b"".join((mine, proof, _LENGTH.pack(len(said)), said)))
        if not hmac.compare_digest(_receive(wire, _PROOF_BYTES, end), _proof(secret, b"listen", mine, theirs, said)):
            raise Refused("who listens there does not know the secret")
    except BaseException:
        wire.close()
        raise
    return _ready(wire)


def admit(wire: socket.socket, secret: bytes) -> dict[str, Any]:
    """What a dialer says about itself, once it has proved that it knows the secret.

    Raises: OSError; Refused, which is one.
    """
    end = time.monotonic() + LIMIT_S
    wire.settimeout(LIMIT_S)
    mine = secrets.token_bytes(_NONCE_BYTES)
    wire.sendall(mine)
    theirs, proof = _receive(wire, _NONCE_BYTES, end), _receive(wire, _PROOF_BYTES, end)
    (length,) = _LENGTH.unpack(_receive(wire, _LENGTH.size, end))
    if length > _MOST_BYTES:
        raise Refused("says more than a dialer has to say")
    said = _receive(wire, length, end)
    if not hmac.compare_digest(proof, _proof(secret, b"dial", mine, theirs, said)):
        raise Refused("does not know the secret")
    wire.sendall(_proof(secret, b"listen", theirs, mine, said))
    _ready(wire)
    hello: dict[str, Any] = json.loads(said)
    return hello


def _ready(wire: socket.socket) -> socket.socket:
    """Send small messages at once, wait as long as it takes, and notice within seconds that a machine is gone."""
    wire.settimeout(None)
    wire.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    wire.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, seconds in (("TCP_KEEPIDLE", 2), ("TCP_KEEPINTVL", 1), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, name):
            wire.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), seconds)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        wire.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 5000)  # milliseconds, of what is not acknowledged
    return wire


def _proof(secret: bytes, role: bytes, *said: bytes) -> bytes:
    return hmac.digest(secret, b"\0".join((role, *said)), "sha256")


def _receive(wire: socket.socket, length: int, end: float) -> bytes:
    """So many bytes before `end`, however slowly they drip."""
    content = bytearray()
    while len(content) < length:
        if (left := end - time.monotonic()) <= 0:
            raise Refused("took too long")
        wire.settimeout(left)
        piece = wire.recv(length - len(content))
        if not piece:
            raise Refused("hung up")
        content += piece
    return bytes(content)
