"""A STOMP client of a few lines, to see what the broker has without the adapter's eyes."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from urllib.parse import urlsplit

from idempotent import Message

_ESCAPES = {"\\": "\\\\", "\r": "\\r", "\n": "\\n", ":": "\\c"}
_UNESCAPES = {escape: char for char, escape in _ESCAPES.items()}
TIMEOUT_S = 20.0


@dataclass(frozen=True)
class Frame:
    command: str
    headers: Mapping[str, str]
    body: bytes


class StompClient:
    def __init__(self, url: str, **headers: str) -> None:
        parts = urlsplit(url)
        self._socket = socket.create_connection((parts.hostname, parts.port), TIMEOUT_S)
        self._received = b""
        self.send("STOMP", {"accept-version": "1.2", "host": "tests", **headers})
        self.greeting = self.read()

    def send(self, command: str, headers: Mapping[str, str], body: bytes = b"") -> None:
        escape = str.maketrans({} if command == "STOMP" else _ESCAPES)
        lines = [f"{name.translate(escape)}:{value.translate(escape)}" for name, value in headers.items()]
        self._socket.sendall("\n".join([command, *lines, "", ""]).encode() + body + b"\0")

    def read(self) -> Frame:
        while True:
            frame = self._parse()
            if frame is not None:
                return frame
            found = self._socket.recv(65536)
            if not found:
                raise ConnectionError("closed")
            self._received += found

    def publish(
        self, destination: str, body: bytes = b"", headers: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        length = str(len(body))
        sent = {"destination": destination, "persistent": "true", "content-length": length, "receipt": "p"}
        self.send("SEND", {**sent, **headers}, body)
        answer = self.read()
        assert answer.command == "RECEIPT", answer

    def browse(self, destination: str) -> list[Frame]:
        """What lies in a queue, without taking it."""
        self.send("SUBSCRIBE", {"id": "b", "destination": destination, "ack": "client", "browser": "true"})
        found = []
        while (frame := self.read()).headers.get("browser") != "end":
            assert frame.command == "MESSAGE", frame
            found.append(frame)
        self.send("UNSUBSCRIBE", {"id": "b", "receipt": "u"})
        while self.read().command != "RECEIPT":
            pass
        return found

    def close(self) -> None:
        self._socket.close()

    def _parse(self) -> Frame | None:
        received = self._received.lstrip(b"\r\n")
        head, gap, rest = received.partition(b"\n\n")
        if not gap:
            return None
        command, *lines = head.decode().split("\n")
        headers: dict[str, str] = {}
        for line in lines:
            name, _, value = line.partition(":")
            headers.setdefault(_unescaped(name), _unescaped(value))
        length = headers.get("content-length")
        end = rest.find(b"\0") if length is None else int(length)
        if end < 0 or len(rest) <= end:
            return None
        self._received = rest[end + 1 :]
        return Frame(command, headers, rest[:end])


def _unescaped(text: str) -> str:
    found, index = [], 0
    while index < len(text):
        width = 2 if text[index] == "\\" else 1
        part = text[index : index + width]
        found.append(_UNESCAPES.get(part, part))
        index += width
    return "".join(found)


@contextmanager
def client(url: str, **headers: str) -> Iterator[StompClient]:
    opened = StompClient(url, **headers)
    try:
        yield opened
    finally:
        opened.close()


def in_queue(url: str, destination: str, **headers: str) -> list[Message]:
    with client(url, **headers) as opened:
        frames = opened.browse(destination)
    return [
        Message(destination, frame.body, id=frame.headers.get("x-idempotent-key"), headers=frame.headers)
        for frame in frames
    ]


def until_in_queue(url: str, destination: str, count: int = 1, **headers: str) -> list[Message]:
    deadline = time.monotonic() + TIMEOUT_S
    while len(found := in_queue(url, destination, **headers)) != count:
        assert time.monotonic() < deadline, f"{len(found)} and not {count} in {destination}"
        time.sleep(0.05)
    return found
