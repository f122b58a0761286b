"""Orders, outbox, broker, billing: each order is booked and invoiced once, whatever is killed on the way."""

from __future__ import annotations

import os
import random
import secrets
import signal
import subprocess
import sys
import time
from contextlib import ExitStack

import pytest
import sqlalchemy as sa

from idempotent.outbox import Outbox, outbox_tables
from tests.outbox.brokers import BROKERS
from tests.project.house import ROOT
from tests.support.stores import open_store

ORDERS = 300
WITHIN_S = 150.0


def until(condition, what):
    end = time.monotonic() + WITHIN_S
    while not condition():
        assert time.monotonic() < end, what()
        time.sleep(0.1)


class Program:
    """A process that is started again whenever it was killed."""

    def __init__(self, *arguments):
        self._arguments = [sys.executable, "-m", "tests.outbox.service", *arguments]
        self.kills = 0
        self.start()

    def start(self):
        self._process = subprocess.Popen(
            self._arguments,
            cwd=ROOT,
            env=dict(os.environ),
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def kill(self):
        self._end(signal.SIGKILL)
        self.kills += 1
        self.start()

    def stop(self):
        return self._end(signal.SIGTERM)

    def _end(self, number):
        assert self._process.poll() is None, self._process.communicate()[1][-3000:]
        self._process.send_signal(number)
        return self._process.communicate(timeout=60)[1]


@pytest.mark.slow
@pytest.mark.parametrize("database", ["postgres", "mysql"])
@pytest.mark.parametrize("broker", BROKERS)
def test_each_order_is_booked_and_invoiced_once_although_all_are_killed(broker, database, request):
    chance = random.Random(7)
    with ExitStack() as stack:
        store = stack.enter_context(contextmanager_of(open_store(database, request)))
        place = stack.enter_context(BROKERS[broker](request))
        metadata = sa.MetaData()
        tables = outbox_tables(metadata, store.table)
        metadata.create_all(store.admin_engine)
        stack.callback(metadata.drop_all, store.admin_engine)
        orders, invoices = f"orders-{secrets.token_hex(4)}", f"invoices-{secrets.token_hex(4)}"
        place.make(orders, invoices)
        url = sa.make_url(store.url).render_as_string(hide_password=False)
        services = (url, store.table, place.url, orders, invoices)
        relays = (url, store.table, place.relay_url, orders, invoices)
        place.send(orders, [f"o{number}" for number in range(ORDERS)])
        programs = [
            Program("orders", *services),
            Program("billing", *services),
            Program("relay", *relays),
            Program("relay", *relays),
        ]

        def invoiced():
            return store.booked()

        def state():
            stats = Outbox(store.engine(), table=store.table).store.stats()
            return f"{len(invoiced())} of {2 * ORDERS} effects; outbox {stats}"

        while len(invoiced()) < 2 * ORDERS and sum(program.kills for program in programs) < 25:
            time.sleep(chance.uniform(0.2, 0.8))
            chance.choice(programs).kill()
        until(lambda: len(invoiced()) == 2 * ORDERS, state)
        for program in programs:
            program.stop()
        expected = {f"{kind} o{number}" for number in range(ORDERS) for kind in ("booked", "invoiced")}
        assert invoiced() == dict.fromkeys(expected, 1)
        with store.admin_engine.connect() as connection:
            left = connection.scalar(sa.select(sa.func.count()).select_from(tables.waiting))
        assert left == 0


def contextmanager_of(generator):
    from contextlib import contextmanager

    return contextmanager(lambda: generator)()
