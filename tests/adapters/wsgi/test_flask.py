"""The middleware around Flask, and under gunicorn."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
import sqlalchemy as sa
from flask import Flask, abort, request

from idempotent.adapters.wsgi import SESSION, IdempotencyKeyMiddleware
from idempotent.checkers import TransactionalSqlChecker
from idempotent.migrations import upgrade
from tests.support.services.process import free_port
from tests.support.stores import open_store

BOOK = sa.text("INSERT INTO bookings VALUES (:id)")
START_S = 60.0


def test_what_a_view_writes_commits_with_its_answer_or_not_at_all(tmp_path: Path) -> None:
    engine = sa.create_engine(f"sqlite:///{tmp_path / 'shop.db'}")
    upgrade(engine)
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE bookings (id VARCHAR(20))")
    app = Flask(__name__)

    @app.post("/<what>")
    def book(what: str) -> str:
        request.environ[SESSION].execute(BOOK, {"id": what})
        if what == "refused":
            abort(409)
        if what == "failed":
            raise ValueError("a bug")
        return request.get_data(as_text=True)

    app.wsgi_app = IdempotencyKeyMiddleware(  # type: ignore[method-assign]
        app.wsgi_app, checker=TransactionalSqlChecker(engine), group="tests", scope=lambda _: "u"
    )
    with httpx.Client(transport=httpx.WSGITransport(app), base_url="http://shop") as http:

        def post(what: str) -> httpx.Response:
            return http.post(f"/{what}", content=b"body", headers={"Idempotency-Key": what})

        answers = [post(what) for what in ("booked", "refused", "failed") for _ in range(2)]
    assert [answer.status_code for answer in answers] == [200, 200, 409, 409, 500, 500]
    assert [answer.text for answer in answers[:2]] == ["body", "body"]
    assert ["idempotent-replayed" in answer.headers for answer in answers] == [False, True] * 2 + [False] * 2
    with engine.connect() as connection:
        # Flask makes an answer of `abort`, and an answer of 4xx commits.
        assert [*connection.scalars(sa.text("SELECT id FROM bookings ORDER BY id"))] == ["booked", "refused"]


@pytest.mark.slow
def test_gunicorn_ends_what_takes_too_long_and_copies_on_two_processes_run_once(
    request: Any, tmp_path: Path
) -> None:
    charges, port = tmp_path / "charges", free_port()
    for store in open_store("postgres", request):
        environ = {**os.environ, "STORE": store.url, "TABLE": store.table, "CHARGES": str(charges)}
        words = ["-w", "2", "--timeout", "3", "-b", f"127.0.0.1:{port}", "tests.adapters.wsgi.flask_shop:app"]
        with (
            subprocess.Popen([sys.executable, "-m", "gunicorn", *words], env=environ) as server,
            httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as http,
        ):
            try:
                until = time.monotonic() + START_S
                while time.monotonic() < until:
                    try:
                        http.get("/")
                        break
                    except httpx.TransportError:
                        time.sleep(0.2)

                def post(key: str, content: bytes) -> httpx.Response | None:
                    try:
                        return http.post("/charge", content=content, headers={"Idempotency-Key": key})
                    except httpx.TransportError:
                        return None  # its process was ended

                with ThreadPoolExecutor(20) as threads:
                    answers = [*threads.map(lambda _: post("copies", b"1"), range(20))]
                assert all(answer is not None and answer.status_code in (200, 409) for answer in answers)
                assert charges.read_text().count("charged") == 1
                first = post("slow", b"30")
                assert first is None or first.status_code >= 500
                second = post("slow", b"30")
                assert second is not None
                assert second.status_code == 409
                assert charges.read_text().count("charged") == 2
            finally:
                server.terminate()
                server.wait(30)
