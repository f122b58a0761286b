"""Sends messages into an outbox."""

import time

from sqlalchemy.orm import Session

from idempotent import Message


def send(outbox, store, *names, subject="invoices", **options):
    with Session(store.admin_engine) as session, session.begin():
        for name in names:
            outbox.send(session, Message(subject, name.encode(), id=name), **options)


def until(condition):
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)
