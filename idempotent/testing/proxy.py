"""Proxy: a TCP proxy on loopback that cuts, stalls and delays connections, and loses a request or an answer."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Final

_READ: Final = 1 << 16
PATIENCE_S: Final = 20.0


class Loss(Enum):
    """What is lost, with the connection, at the chosen packet."""

    ANSWER = "answer"
    """The server acts on the packet; its answer never arrives."""
    QUESTION = "question"
    """The packet never reaches the server."""
    LATE = "late"
    """The server gets the packet at `deliver()`, after the client has given up."""
    SILENCE = "silence"
    """Neither the packet nor what follows reaches the server. The connection stays open."""


@dataclass(frozen=True, slots=True)
class _Choice:
    pattern: bytes
    loss: Loss
    then_refuse: bool
    seen: threading.Event
    passing: list[None]
    """One element for each packet with this content that is to pass before."""


class Proxy:
    """Forwards to one server. Encrypted packets pass too, but cannot be chosen by their content.

    Args:
        host: the server's host.
        port: the server's port.
        patience_s: seconds that the server has to act on a packet whose answer is lost.
        translate: makes, for each connection, the function that changes the server's bytes for the client.

    Attributes:
        port: the proxy listens here, on 127.0.0.1.
        cut_off: set when the packet chosen last was seen and its connection was cut.
    """

    def __init__(
        self,
        host: str,
        port: int,
        *,
        patience_s: float = PATIENCE_S,
        translate: Callable[[], Callable[[bytes], bytes]] | None = None,
    ) -> None:
        """Start to listen."""
        self._target = (host, port)
        self._patience_s = patience_s
        self._translate = translate or (lambda: bytes)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: Final[int] = self._listener.getsockname()[1]
        self.cut_off = threading.Event()
        self._delay_s = 0.0
        self._late: list[Callable[[], None]] = []
        self._chosen: _Choice | None = None
        self._refuses = False
        self._flows = threading.Event()
        self._flows.set()
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        threading.Thread(target=self._accept, daemon=True).start()

    def lose(
        self, pattern: bytes, loss: Loss = Loss.ANSWER, *, then_refuse: bool = False, passing: int = 0
    ) -> threading.Event:
        """Choose the next packet of a client with this content, and cut its connection, or leave it in silence.

        Args:
            pattern: bytes in the packet; empty: any packet.
            loss: what does not arrive.
            then_refuse: cut the other connections too, and refuse new ones until `recover`.
            passing: how many packets with this content pass before.

        Returns:
            Set when the packet was seen: its own `cut_off`, whatever is chosen after it.
        """
        self.cut_off = threading.Event()
        self._chosen = _Choice(pattern, loss, then_refuse, self.cut_off, [None] * passing)
        return self.cut_off

    def lose_nothing(self) -> None:
        """Take back a `lose` whose packet was not seen yet."""
        self._chosen = None

    def deliver(self) -> None:
        """Send all late packets to the server, on the connections that were kept open for them."""
        while self._late:
            act = self._late.pop(0)
            with contextlib.suppress(OSError):  # the server may have gone
                act()

    def cut(self) -> int:
        """Cut every connection. Returns their number."""
        with self._lock:
            ends, self._open = self._open, set()
        for end in ends:
            _hang_up(end)
        return len(ends) // 2

    def refuse(self) -> None:
        """Cut every connection, and refuse new ones until `recover`."""
        self._refuses = True
        self.cut()

    def recover(self) -> None:
        """Accept clients again."""
        self._refuses = False

    def delay(self, seconds: float) -> None:
        """Forward each packet of a client this much later."""
        self._delay_s = seconds

    def stall(self) -> None:
        """Forward nothing until `go_on`; connections stay open."""
        self._flows.clear()

    def go_on(self) -> None:
        """Forward again, beginning with the bytes that waited."""
        self._flows.set()

    def close(self) -> None:
        """Cut every connection and stop listening."""
        _hang_up(self._listener)
        self._flows.set()
        self.cut()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        try:
            if self._refuses:
                return
            server = socket.create_connection(self._target, self._patience_s)
        except OSError:
            return  # the server is down; the client sees its connection end
        else:
            server.settimeout(None)
            with self._lock:
                self._open |= {client, server}
            self._forward(client, server)
        finally:
            self._end(client)

    def _forward(self, client: socket.socket, server: socket.socket) -> None:
        lost = threading.Event()
        back = threading.Thread(target=self._answer, args=(server, client, lost), daemon=True)
        back.start()

        def act() -> None:
            server.sendall(packet)
            back.join(self._patience_s)  # ends with the answer
            self._end(server)

        with contextlib.suppress(OSError):
            while packet := client.recv(_READ):
                self._flows.wait()
                if self._delay_s:
                    time.sleep(self._delay_s)
                choice = self._chosen_for(packet)
                if choice is None:
                    server.sendall(packet)
                    continue
                lost.set()
                self._refuses = choice.then_refuse
                if choice.then_refuse:
                    self._cut_others(client, server)
                match choice.loss:
                    case Loss.LATE:
                        self._late.append(act)
                    case Loss.ANSWER:
                        act()
                    case Loss.QUESTION:
                        self._end(server)
                    case Loss.SILENCE:
                        choice.seen.set()
                        while client.recv(_READ):
                            pass  # until the client gives up
                        self._end(server)
                choice.seen.set()
                return
        self._end(server)

    def _chosen_for(self, packet: bytes) -> _Choice | None:
        """The choice that this packet meets. Only one packet meets it, whichever connection is first."""
        with self._lock:
            if self._chosen is None or self._chosen.pattern not in packet:
                return None
            if self._chosen.passing:
                self._chosen.passing.pop()
                return None
            choice, self._chosen = self._chosen, None
            return choice

    def _end(self, end: socket.socket) -> None:
        with self._lock:
            self._open.discard(end)
        _hang_up(end)

    def _cut_others(self, *ours: socket.socket) -> None:
        with self._lock:
            others = self._open - {*ours}
        for other in others:
            _hang_up(other)

    def _answer(self, server: socket.socket, client: socket.socket, lost: threading.Event) -> None:
        translate = self._translate()
        with contextlib.suppress(OSError):
            while (packet := server.recv(_READ)) and not lost.is_set():
                self._flows.wait()
                client.sendall(translate(packet))
        if not lost.is_set():
            _hang_up(client)


def _hang_up(end: socket.socket) -> None:
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
    end.close()
