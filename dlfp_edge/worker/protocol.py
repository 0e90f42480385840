"""The protocol between front and worker: frames on a pair of byte streams, and the hello that both begin with.

A frame is four bytes, the length of what follows (big-endian), and a JSON object in UTF-8 with its kind under "kind".

front to worker   hello, open, submit, cancel, hold, ask, ping, close
worker to front   hello, ready, accepted, refused, progress, finished, answer, notice, pong, failed, closed
"""

from __future__ import annotations

import json
import struct
import threading
from importlib.metadata import version
from typing import Any, BinaryIO, TypeAlias

from dlfp_edge.errors import DlfpError, UsageError

PROTOCOL = 4
"""Raised with every change to the messages or to what the objects in them mean."""

LARGEST_FRAME = 16 << 20
"""Bytes of one message: a prompt of two million tokens, and nothing that a mistake could make grow without end."""

_LENGTH = struct.Struct(">I")

Message: TypeAlias = dict[str, Any]


class ProtocolError(DlfpError):
    """What came over the connection is no message of this protocol, or of another version of it."""


class BrokenOff(ProtocolError):
    """The other side went away in the middle of a message."""

    def __init__(self) -> None:
        super().__init__("the connection broke off in the middle of a message")


def encode_frame(kind: str, **fields: Any) -> bytes:
    """A message as bytes. Raises UsageError for one that is larger than the protocol allows."""
    payload = json.dumps({"kind": kind, **fields}, separators=(",", ":")).encode()
    if len(payload) > LARGEST_FRAME:
        raise UsageError(f"the request takes {len(payload)} bytes, a worker at most {LARGEST_FRAME}: make it shorter")
    return _LENGTH.pack(len(payload)) + payload


def read_frame(stream: BinaryIO) -> Message | None:
    """The next message; None where the stream ends between two. Raises ProtocolError for anything else."""
    header = stream.read(_LENGTH.size)
    if not header:
        return None
    if len(header) < _LENGTH.size:
        raise BrokenOff
    (length,) = _LENGTH.unpack(header)
    if length > LARGEST_FRAME:
        raise ProtocolError(
            f"a message of {length} bytes, at most {LARGEST_FRAME} are taken: the other side is no peer"
        )
    payload = stream.read(length)
    if len(payload) < length:
        raise BrokenOff
    try:
        message = json.loads(payload)
    except (ValueError, RecursionError):
        raise ProtocolError("a message that is no JSON: the other side is no peer") from None
    if not isinstance(message, dict) or not isinstance(message.get("kind"), str):
        raise ProtocolError("a message without a kind: the other side is no peer")
    return message


class Wire:
    """Messages over a pair of byte streams. Any thread may send, one receives."""

    def __init__(self, incoming: BinaryIO, outgoing: BinaryIO) -> None:
        self._incoming = incoming
        self._outgoing = outgoing
        self._sending = threading.Lock()

    def send(self, kind: str, **fields: Any) -> None:
        """Send a message. Raises OSError where the other side has gone."""
        self.send_frame(encode_frame(kind, **fields))

    def send_frame(self, frame: bytes) -> None:
        """Send what `encode_frame` made."""
        with self._sending:
            self._outgoing.write(frame)
            self._outgoing.flush()

    def receive(self) -> Message | None:
        """Wait for a message; None once the other side has gone. Raises ProtocolError."""
        try:
            return read_frame(self._incoming)
        except (OSError, ValueError):  # reset, or closed by this side meanwhile
            return None


def hello() -> Message:
    """What both sides say first."""
    return {"protocol": PROTOCOL, "release": version("dlfp-edge")}


def check_hello(message: Message | None, who: str) -> Message:
    """The first message of the other side. Raises ProtocolError that names both versions where they differ."""
    if message is None or message["kind"] != "hello":
        raise ProtocolError(f"the {who} did not say hello: it is no dlfp-edge {who}")
    mine = hello()
    theirs = {name: message.get(name) for name in mine}
    if theirs != mine:
        raise ProtocolError(
            f"the {who} speaks protocol {theirs['protocol']} (dlfp-edge {theirs['release']}), this side protocol "
            f"{mine['protocol']} (dlfp-edge {mine['release']}): install the same dlfp-edge on both sides"
        )
    return message
