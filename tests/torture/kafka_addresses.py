"""KafkaAddresses: Kafka sends its own address to its clients; behind a proxy that must be the proxy's."""

from __future__ import annotations

import struct
from typing import Final

_SIZE: Final = struct.Struct(">i")


class KafkaAddresses:
    """Changes one address in the frames of one connection, wherever a host is followed by its port.

    Args:
        was: host and port as the broker sends them.
        becomes: what the client must read instead.
    """

    def __init__(self, was: tuple[str, int], becomes: tuple[str, int]) -> None:
        """Begin with an empty buffer."""
        self._rest = b""
        # The length before a host has two bytes; in newer answers one byte, and it is larger by one.
        self._pairs = [
            (_address(before, was[1], newer=newer), _address(becomes[0], becomes[1], newer=newer))
            for before in {was[0], "localhost", "127.0.0.1"}
            for newer in (False, True)
        ]

    def __call__(self, packet: bytes) -> bytes:
        """The frames that are complete now, changed."""
        self._rest += packet
        whole = b""
        while len(self._rest) >= _SIZE.size:
            (size,) = _SIZE.unpack_from(self._rest)
            end = _SIZE.size + size
            if len(self._rest) < end:
                break
            frame, self._rest = self._rest[_SIZE.size : end], self._rest[end:]
            for was, becomes in self._pairs:
                frame = frame.replace(was, becomes)
            whole += _SIZE.pack(len(frame)) + frame
        return whole


def _address(host: str, port: int, *, newer: bool) -> bytes:
    name = host.encode()
    length = bytes([len(name) + 1]) if newer else struct.pack(">h", len(name))
    return length + name + _SIZE.pack(port)
