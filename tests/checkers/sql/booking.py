"""What the tests of transactional checkers share: a handler that books messages."""

from __future__ import annotations

import pytest
from sqlalchemy.orm import Session

from idempotent import Message, Registry
from idempotent.admin import KeyFilter

# Arguments of a transactional checker: what its promises must not depend on.
MODES = [{}, {"savepoints": True}, {"strict": True}]


def only(store, *kinds):
    if store.kind not in kinds:
        pytest.skip(f"of {' and '.join(kinds)} only")


def book(store, session, message):
    session.execute(store.effects.insert().values(id=message.id))


def consumer_of(store, checker, handle=None, **options):
    """A consumer that books each message, then does what the test wants in the same transaction."""

    @Registry().consumer("orders", checker=checker, **options)
    def consumer(message, session: Session):
        book(store, session, message)
        if handle:
            handle(message, session)

    return consumer


def keys(checker):
    return {record.text.rpartition(":")[2] for record in checker.admin().list(KeyFilter())}


def messages(*ids):
    return [Message("orders", id=i) for i in ids]


def outcomes(results):
    return [result.outcome.value for result in results]


def raw(session, statement):
    cursor = session.connection().connection.cursor()
    cursor.execute(statement)
    cursor.close()
