"""KafkaAddresses: Kafka tells its clients where it is; behind a proxy that must be the proxy's address."""

from __future__ import annotations

import struct
from typing import Final

_SIZE: Final = struct.Struct(">i")


class KafkaAddresses:
    """Changes one address in the frames of one connection, wherever a host is followed by its port.

    Args:
        was: host and port as the broker names them.
        becomes: what the client is to read.
    """

    def __init__(self, was: tuple[str, int], becomes: tuple[str, int]) -> None:
        """Nothing has come yet."""
        self._rest = b""
        # A host comes with its length, in two bytes or, in newer answers, in one and larger by one.
        self._pairs = [
            (_address(before, was[1], newer=newer), _address(becomes[0], becomes[1], newer=newer))
            for before in {was[0], "localhost", "127.0.0.1"}
            for newer in (False, True)
        ]

    def __call__(self, packet: bytes) -> bytes:
        """The frames that are whole now, changed."""
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
