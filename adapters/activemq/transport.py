"""Transport: stomp.py's socket and reader thread, with corrections."""

from __future__ import annotations

import contextlib
import os
import re
import selectors
import socket
import ssl
import struct
import threading
import time
from collections.abc import Iterator
from typing import Final

from idempotent.adapters.activemq import client as stomp

_CHUNK: Final = 65536


_END_OF_HEADERS: Final = re.compile(rb"\n\r?\n")
_CONTENT_LENGTH: Final = re.compile(rb"^content-length:[ \t]*(\d{1,18})[ \t\r]*$", re.MULTILINE)
_BETWEEN_FRAMES: Final = b"\r\n"


class FrameSplitter:
    """Takes bytes and yields frames, without their closing NUL. Heartbeats are skipped."""

    def __init__(self) -> None:
        self._received = bytearray()
        self._frames = self._split()

    def add(self, chunk: bytes) -> None:
        """Add received bytes."""
        self._received += chunk

    def __iter__(self) -> Iterator[bytes]:
        """Yield the complete frames, each once."""
        while (frame := next(self._frames)) is not None:
            yield frame

    def _split(self) -> Iterator[bytes | None]:
        """Yield the frames, and None where more bytes are needed; those that were looked at are not looked at again."""
        received = self._received
        while True:
            while not received or received[0] in _BETWEEN_FRAMES:
                if received:
                    del received[0]
                else:
                    yield None
            seen = 0
            while (headers := _END_OF_HEADERS.search(received, max(seen - 2, 0))) is None:
                seen = len(received)
                yield None
            body = headers.end()
            if (length := _CONTENT_LENGTH.search(received, 0, body)) is not None:
                end = body + int(length[1])
                while len(received) <= end:
                    yield None
            else:
                seen = body
                while (end := received.find(b"\0", seen)) < 0:
                    seen = len(received)
                    yield None
            frame = bytes(received[:end])
            del received[: end + 1]
            yield frame


class Transport(stomp.Transport):  # type: ignore[misc]
    """One socket, for one connection. stomp.py reads from it in a thread of its own.

    Differences to stomp.py's: a failed attempt raises its cause; a write ends after `timeout_s`, however the peer
    behaves; the end of an encrypted connection is noticed at once; closing waits for no other thread; a password
    never reaches a log.

    Args:
        host: of the broker.
        port: of the broker.
        context: of an encrypted connection; None: unencrypted.
        timeout_s: for the connection, the handshake and every write.
    """

    def __init__(self, host: str, port: int, context: ssl.SSLContext | None, timeout_s: float) -> None:
        """Connect in `start`."""
        super().__init__([(host, port)], auto_decode=False)
        self._address = (host, port)
        self._context = context
        self._timeout_s = timeout_s
        self._writing = threading.Lock()
        self._frames = FrameSplitter()
        self.received_at = time.monotonic()
        """When the last byte arrived, heartbeats included, in seconds of the monotonic clock."""

    def attempt_connection(self) -> None:
        """Connect once.

        Raises:
            OSError: the attempt failed; TLS errors are OSErrors too.
        """
        plain = socket.create_connection(self._address, self._timeout_s)
        try:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connected = self._encrypted(plain, self._context) if self._context else plain
            connected.setblocking(self._context is None)
        except BaseException:
            plain.close()
            raise
        if os.name == "posix":
            # Python's own timeout would also limit reads; the kernel's limits writes alone.
            timeout = struct.pack("ll", int(self._timeout_s), int(self._timeout_s % 1 * 1_000_000))
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, timeout)
        self.socket = connected
        self.current_host_and_port = self._address
        self.received_at = time.monotonic()

    def _encrypted(self, plain: socket.socket, context: ssl.SSLContext) -> ssl.SSLSocket:
        encrypted = context.wrap_socket(plain, server_hostname=self._address[0])
        # A TLS socket is one state machine, so the reader thread writes too.
        self.send_queue = stomp.PollableQueue()
        self.sel = selectors.DefaultSelector()
        self.sel.register(self.send_queue, selectors.EVENT_READ)
        self.sel.register(encrypted, selectors.EVENT_READ)
        self.blocking = False
        return encrypted

    def receive(self) -> bytes:
        """The next bytes; empty at the end of the connection. SSLWantReadError: no bytes yet."""
        try:
            found: bytes = self.socket.recv(_CHUNK)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except OSError:
            found = b""
        if found:
            self.received_at = time.monotonic()
        else:
            # stomp.py takes the end of an encrypted stream for a pause, and would read forever.
            self.running = False
        return found

    def _BaseTransport__read(self) -> list[bytes]:  # noqa: N802 - stomp.py has no better seam
        """The complete frames.

        stomp.py's own method splits a frame at a NUL in a header, which JMS allows: the handler would get the first
        half, with some of the headers and no body.
        """
        try:
            while found := self.receive():
                self._frames.add(found)
                if self.blocking:
                    break
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            pass
        if not self.running:
            raise stomp.ConnectionClosedException
        return list(self._frames)

    def transmit(self, frame: stomp.Frame) -> None:
        # stomp.py's own method logs frames for debugging, with the password, and every failure as an error.
        packed = stomp.pack(stomp.convert_frame(frame))
        if self.blocking:
            self.send(packed)
        else:
            self.send_queue.put(packed)

    def send(self, encoded_frame: bytes) -> None:
        connected = self.socket
        if connected is None:
            raise ConnectionError("the connection is closed")
        with self._writing:
            connected.sendall(encoded_frame)

    def disconnect_socket(self) -> None:
        """End the connection now, from any thread. The reader thread cleans up."""
        self.running = False
        self.set_connected(False)
        with contextlib.suppress(OSError, AttributeError, ValueError):
            self.socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the socket, which a reader thread that never ran leaves open."""
        # stomp.py sets the socket to None when it cleans up.
        with contextlib.suppress(OSError, AttributeError):
            self.socket.close()
