"""A TCP proxy on loopback that loses an answer or a question, chosen by what is in the packet."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from enum import Enum
from typing import Final

_READ: Final = 1 << 16
_PATIENCE_S: Final = 20.0


class Loss(Enum):
    ANSWER = "answer"  # the server acts on the packet; its answer never arrives
    QUESTION = "question"  # the packet never reaches the server
    LATE = "late"  # the server gets the packet at `deliver()`, long after the client has given up


class Proxy:
    """Forwards to one server.

    Attributes:
        port: where it listens.
        cut: set once the chosen packet came by and its connection was cut.
    """

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: Final[int] = self._listener.getsockname()[1]
        self.cut = threading.Event()
        self._chosen: tuple[bytes, Loss, bool] | None = None
        self._refuses = False
        self.deliver: Callable[[], None] = lambda: None
        self._open: list[socket.socket] = [self._listener]
        threading.Thread(target=self._accept, daemon=True).start()

    def lose(self, pattern: bytes, loss: Loss = Loss.ANSWER, *, then_refuse: bool = False) -> None:
        """Cut at a client's next packet with this in it; and then let nobody in, if so told, until `recover`."""
        self._chosen = (pattern, loss, then_refuse)

    def recover(self) -> None:
        self._refuses = False

    def close(self) -> None:
        for end in self._open:
            _hang_up(end)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                if self._refuses:
                    _hang_up(client)
                    continue
                server = socket.create_connection(self._target, _PATIENCE_S)
                server.settimeout(None)
                self._open += [client, server]
                threading.Thread(target=self._forward, args=(client, server), daemon=True).start()

    def _forward(self, client: socket.socket, server: socket.socket) -> None:
        lost = threading.Event()
        back = threading.Thread(target=_answer, args=(server, client, lost), daemon=True)
        back.start()

        def act() -> None:
            server.sendall(packet)
            back.join(_PATIENCE_S)  # ends with the answer
            _hang_up(server)

        with contextlib.suppress(OSError):
            while packet := client.recv(_READ):
                if self._chosen is None or self._chosen[0] not in packet:
                    server.sendall(packet)
                    continue
                (_, loss, self._refuses), self._chosen = self._chosen, None
                lost.set()
                if self._refuses:
                    for other in self._open[1:]:
                        if other not in (client, server):
                            _hang_up(other)
                if loss is Loss.LATE:
                    self.deliver = act
                else:
                    act() if loss is Loss.ANSWER else _hang_up(server)
                self.cut.set()
                _hang_up(client)
                return
        _hang_up(server)


def _answer(server: socket.socket, client: socket.socket, lost: threading.Event) -> None:
    with contextlib.suppress(OSError):
        while (packet := server.recv(_READ)) and not lost.is_set():
            client.sendall(packet)
    if not lost.is_set():
        _hang_up(client)


def _hang_up(end: socket.socket) -> None:
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
    end.close()
