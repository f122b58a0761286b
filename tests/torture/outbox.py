"""The second half of a run with an outbox: what handlers send, the relays, and a second consumer behind its inbox.

Each message of the first half sends one, so that both halves have one ledger, and are judged together. A sent message
is known by the id of the first one: the message id that the outbox gives it tells the relays' repeats apart, not ours.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from typing import Final

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from examples.demo.stage.places import Place
from idempotent.adapters.base import Adapter
from idempotent.checkers.urls import scheme_of
from idempotent.errors import PublishError
from idempotent.message import Message
from idempotent.outbox import Outbox, Relay
from idempotent.testing.crashpoints import reach
from idempotent.testing.only_publishing import OnlyPublishing
from idempotent.worker.process import on_stop_signal
from tests.torture.journal import Journal, What
from tests.torture.settings import Job
from tests.torture.stores import ORDER_KEYS, counters_table
from tests.torture.traffic import headers_of, known_as, sent_id, sent_subject

# Neighbours have one key: then groups lock the keys in nearly the same order, and few of them deadlock.
_IN_TURN: Final = 4


class Sending:
    """What the handlers of one process send, and its relay.

    Args:
        job: of the process.
        journal: gets a line for each message that the broker has confirmed.
        place: on the broker.
    """

    def __init__(self, job: Job, journal: Journal, place: Place) -> None:
        self._job = job
        self._journal = journal
        self._place = place
        self._counters = counters_table(job.name)
        self._outbox = Outbox(scheme_of(job.checker_url).store_url(job.checker_url), table=job.name)

    def relay(self) -> Relay:
        """A relay."""
        publisher = Publisher(self._place.adapter(), self._journal)
        return Relay(self._outbox, publisher, lease_s=self._job.lease_s)

    def relay_until_stopped(self) -> None:
        """Only relay, until a signal comes."""
        relay = self.relay()
        with on_stop_signal(relay.stop):
            relay.run()

    def send(self, session: Session, message: Message) -> None:
        """Send a message in the transaction of this one's effect."""
        count = self._counted(session, message)
        self._outbox.send(session, self._made(message, count), order_key=_order_key(message))

    async def send_async(self, session: AsyncSession, message: Message) -> None:
        """The same in an AsyncSession."""
        count = await session.run_sync(self._counted, message)
        self._outbox.send(session, self._made(message, count), order_key=_order_key(message))

    def _counted(self, session: Session, message: Message) -> int:
        """The number of this message in its order. Its row stays locked until the commit."""
        counters = self._counters
        chosen = counters.c.order_key == _order_of(message)
        session.execute(counters.update().where(chosen).values(count=counters.c.count + 1))
        count: int = session.execute(sa.select(counters.c.count).where(chosen)).scalar_one()
        return count

    def _made(self, message: Message, count: int) -> Message:
        known = {"id": sent_id(str(message.id)), "order": _order_of(message), "count": count}
        # Its handler is as slow, or fails as often, as that of the first message.
        body = message.json() | known
        return Message(
            sent_subject(self._job.name),
            json.dumps(body).encode(),
            headers=headers_of(body["number"], has_bytes=self._place.has_bytes),
        )


def _order_of(message: Message) -> int:
    number: int = message.json()["number"]
    return number // _IN_TURN % ORDER_KEYS


def _order_key(message: Message) -> str:
    return f"order-{_order_of(message)}"


def check_order_key(message: Message, journal: Journal) -> None:
    """Of a sent message: on Kafka its order key chooses the partition."""
    expected = _order_key(message).encode()
    if message.key not in (None, expected):
        journal.write(What.WRONG, id=known_as(message), error=f"the key is {message.key!r}")


class Publisher(OnlyPublishing):
    """A relay's adapter: with the crash points "publish", and with what the broker confirmed in the journal."""

    def __init__(self, adapter: Adapter, journal: Journal) -> None:
        super().__init__(adapter)
        self._journal = journal

    def publish_many(self, messages: Sequence[Message]) -> None:
        reach("before_publish")
        failed: Collection[int] = range(len(messages))
        try:
            super().publish_many(messages)
            failed = ()
        except PublishError as error:
            failed = {*error.refused, *error.unknown}
            raise
        finally:
            for place, message in enumerate(messages):
                if place not in failed:
                    self._note(message)
        reach("after_publish")

    def _note(self, message: Message) -> None:
        """Write it down as a place in its order, in the form of a place in a partition."""
        body = message.json()
        position = f"order/{body['order']}/{body['count']}"
        self._journal.write(What.PUBLISHED, id=body["id"], position=position)
