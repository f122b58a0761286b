"""A shop in Flask, for gunicorn: each charge is a line of a file, and takes as long as its request says."""

from __future__ import annotations

import os
import time
from pathlib import Path

from flask import Flask, request

from idempotent.adapters.wsgi import IdempotencyKeyMiddleware
from idempotent.checkers import SqlChecker

app = Flask(__name__)


@app.post("/charge")
def charge() -> str:
    with Path(os.environ["CHARGES"]).open("a") as charges:
        charges.write("charged\n")
    time.sleep(float(request.get_data() or 0))
    return f"charged in {os.getpid()}"


app.wsgi_app = IdempotencyKeyMiddleware(  # type: ignore[method-assign]
    app.wsgi_app,
    checker=SqlChecker(os.environ["STORE"], table=os.environ["TABLE"]),
    group="tests",
    scope=lambda _: "u",
    on_expired_lease="park",
)
