"""What `idempotent doctor` says of ActiveMQ: whether it answers, and what STOMP does not tell."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator
from dataclasses import replace

from idempotent.adapters.activemq.connection import StompConnection
from idempotent.adapters.activemq.options import StompSettings
from idempotent.adapters.activemq.refusals import LostError, RefusedError
from idempotent.admin import Finding, Level
from idempotent.errors import AdapterError


def stomp_findings(
    settings: StompSettings, dead_letter_queues: Collection[str], *, scheduler: bool | None
) -> Iterator[Finding]:
    """Check that the broker takes the login. Subscribes to nothing, and sends nothing.

    Args:
        settings: of the broker.
        dead_letter_queues: their names.
        scheduler: whether the broker is said to have one; None: unknown.

    Raises:
        AdapterError: the broker refuses the connection, or cannot be reached.
    """
    # A worker has its client id, which no other connection may use meanwhile.
    connection = StompConnection(
        replace(settings, client_id=None, durable_subscription=None), threading.Event()
    )
    try:
        connection.open(())
    except (LostError, RefusedError) as error:
        connection.abort()
        raise AdapterError(f"cannot use {settings.address}: {error}") from error
    connection.disconnect()
    yield Finding(Level.OK, f"the broker answers: {connection.server} at {settings.address}")
    if scheduler is False:
        yield Finding(
            Level.ADVICE,
            "scheduler is off: failed messages wait in the worker's memory, unacknowledged",
            'schedulerSupport="true" in conf/activemq.xml, and scheduler=true in the URL',
        )
    elif scheduler is None:
        yield Finding(
            Level.ADVICE,
            "STOMP does not tell whether the broker has a scheduler, in which failed messages wait",
            'look in conf/activemq.xml: schedulerSupport="true"',
        )
    queues = f": {', '.join(dead_letter_queues)}" if dead_letter_queues else ""
    yield Finding(
        Level.ADVICE,
        f"STOMP tells nothing of queues and of what policies drop; dead letters are in queues of their own{queues}",
        'look in conf/activemq.xml: persistent="true", no discardingDLQBrokerPlugin, timeStampingBrokerPlugin or '
        "expiration that removes messages, and a storeUsage that is not full; and in the console for the queues",
    )
