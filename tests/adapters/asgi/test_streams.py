"""Streams, long and binary bodies, and clients that hang up, on each server."""

from __future__ import annotations

import gzip
import secrets
import socket
from threading import Event
from urllib.parse import urlsplit

import pytest

from idempotent.checkers import MemoryChecker
from tests.adapters.asgi.serving import Client, client_of, problem_of, until
from tests.functions.kinds import Kind

SERVERS = ("uvicorn", "hypercorn")
MEGABYTE = 1_000_000


@pytest.fixture(params=SERVERS)
def server(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_a_stream_is_passed_on_while_it_comes_and_stored_when_it_is_whole(server: str, kind: Kind) -> None:
    with client_of(kind.checker, server) as client:
        client.shop.parts, client.shop.waits = [b"first ", b"second"], Event()
        headers = {"Authorization": "Bearer of-alice", "Idempotency-Key": "k"}
        client.shop.waits.set()
        if not kind.is_transactional:  # there it waits for the COMMIT
            with client.http.stream("POST", "/", headers=headers, content=b"10 EUR") as answer:
                client.shop.waits.clear()
                parts = answer.iter_raw()
                assert next(parts) == b"first "
                client.shop.waits.set()
                assert b"".join(parts) == b"second"
        for _ in range(2):
            replayed = client.post("k", "/")
            assert replayed.content == b"first second"
        assert replayed.headers["idempotent-replayed"] == "true"
        assert len(client.shop.charged) == 1


def test_a_stream_that_is_too_long_is_passed_on_and_does_not_run_again(server: str) -> None:
    with client_of(MemoryChecker(), server, max_body=10_000) as client:
        client.shop.parts = [b"x" * 1000] * 20
        assert client.post().content == b"x" * 20_000
        assert problem_of(client.post()) == "answer-not-stored"
        assert len(client.shop.charged) == 1


def test_a_stream_that_breaks_is_not_whole_and_its_key_is_free(server: str) -> None:
    with client_of(MemoryChecker(), server) as client:
        client.shop.parts = [b"x" * 1000, None]  # type: ignore[list-item] # which cannot be sent
        for number in (1, 2):
            with pytest.raises(Exception, match=r"closed|disconnected|incomplete"):
                client.post()
            assert len(client.shop.charged) == number
        client.shop.parts = None
        assert client.post().text == "charge 3"


def bodies() -> dict[str, tuple[bytes, dict[str, str]]]:
    form = b'--x\r\nContent-Disposition: form-data; name="a"; filename="b"\r\n\r\n\x00\xff\r\n--x--\r\n'
    return {
        "binary": (bytes(range(256)) * 10, {}),
        "gzip": (gzip.compress(b"10 EUR" * 1000), {"Content-Encoding": "gzip"}),
        "multipart": (form, {"Content-Type": "multipart/form-data; boundary=x"}),
        "empty": (b"", {}),
    }


@pytest.mark.parametrize("name", bodies())
def test_a_body_and_its_answer_stay_as_they_are(kind: Kind, name: str) -> None:
    body, headers = bodies()[name]
    with client_of(kind.checker) as client:
        client.shop.answer = gzip.compress(body)
        client.shop.headers = {"Content-Encoding": "gzip", "X-Name": "caf\xe9"}
        for _ in range(2):
            answer = client.post(content=body, headers=headers)
            assert answer.content == body
            assert answer.headers["x-name"].encode("latin-1") in (b"caf\xe9", "café".encode())
        assert answer.headers["idempotent-replayed"] == "true"
        assert client.shop.charged == [body]


def test_a_body_of_10_megabytes_is_refused_or_run_once(server: str) -> None:
    body = secrets.token_bytes(10 * MEGABYTE)
    with client_of(MemoryChecker(), server) as client:
        assert problem_of(client.post(content=body)) == "body-too-long"
        assert client.shop.charged == []
        assert client.post(None, content=body).text == "charge 1"
    with client_of(MemoryChecker(), server, max_body=20 * MEGABYTE) as client:
        assert [client.post(content=body).text for _ in range(2)] == ["charge 1"] * 2
        client.shop.answer = body
        assert client.post("long").content == body
        assert problem_of(client.post("long")) == "answer-not-stored"
        assert client.shop.charged[1:] == [b"10 EUR"]


def hung_up(client: Client, head: bytes, body: bytes) -> socket.socket:
    address = urlsplit(str(client.http.base_url))
    connection = socket.create_connection((address.hostname, address.port))
    start = b"POST /charge HTTP/1.1\r\nHost: shop\r\nAuthorization: Bearer of-alice\r\nIdempotency-Key: k\r\n"
    connection.sendall(start + head + b"\r\n\r\n" + body)
    return connection


def test_a_client_that_hangs_up_before_its_body_is_whole_leaves_nothing(server: str) -> None:
    with client_of(MemoryChecker(), server) as client:
        hung_up(client, b"Content-Length: 6", b"10 ").close()
        hung_up(client, b"Transfer-Encoding: chunked", b"3\r\n10 \r\n").close()
        assert client.post().text == "charge 1"
        assert client.shop.charged == [b"10 EUR"]


def test_a_client_that_hangs_up_does_not_end_what_runs(server: str, kind: Kind) -> None:
    for streams in (False, True):
        with client_of(kind.checker, server, group=f"tests-{streams}") as client:
            client.shop.waits = Event()
            client.shop.parts = [b"a" * 100_000] * 5 if streams else None
            hung_up(client, b"Content-Length: 6", b"10 EUR").close()
            assert client.shop.began.wait(30)
            assert problem_of(client.post()) == "in-progress"
            client.shop.waits.set()
            until(lambda client=client: client.post().status_code == 200)  # type: ignore[misc]
            answer = client.post()
            assert answer.content == (b"a" * 500_000 if streams else b"charge 1")
            assert answer.headers["idempotent-replayed"] == "true"
            assert len(client.shop.charged) == 1
            # What runs after the answer was sent may end after a copy has it.
            until(lambda client=client, streams=streams: streams or client.shop.background == [1])  # type: ignore[misc]
