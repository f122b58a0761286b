"""What a client sets decides about its own rows alone.

Another client of the same store, with shorter times, deletes no row of the first client in any table. Its own rows are
deleted when its own settings say so, also if the first client collects them.
"""

import time
from contextlib import ExitStack

import pytest
import sqlalchemy as sa
from redis import Redis

from idempotent import Message
from idempotent.adapters.spark.ledger import StoreConfig, open_ledger
from idempotent.adapters.spark.ledger.handler_claims import HandlerClaims
from idempotent.checkers import OffsetChecker
from idempotent.claims import ClaimRequest, Failure
from idempotent.keys import KeySpace
from idempotent.outbox import Outbox
from idempotent.outbox.entries import BUCKETS, bucket_of, lane_of
from idempotent.outbox.relays.leases import BucketLeases
from idempotent.policy import Backoff
from tests.migrations.support import expected
from tests.outbox.picky import SOON, Picky, relay, until

LONG_S, SHORT_S = 30 * 86400.0, 0.001
# Where a test waits for a server, a lease is the limit of its patience.
PATIENT = {"lease_s": LONG_S, "retention_s": LONG_S, "dead_retention_s": LONG_S}
HASTY = {"lease_s": 10.0, "retention_s": SHORT_S, "dead_retention_s": SHORT_S}
RELAY = b"r" * 16


@pytest.fixture
def client(shared_store):
    """`client(settings)`: another process over the store, which has all tables."""
    store, others = shared_store, []
    if store.kind != "redis":
        metadata = expected(store.table)
        others = [table for name, table in metadata.tables.items() if "_run" in name or "_outbox" in name]
        metadata.create_all(store.admin_engine, tables=others)
    with ExitStack() as opened:

        def client(settings):
            made = Client(store, settings)
            opened.callback(made.close)
            return made

        yield client
    if others:
        store.opened.close()
        metadata.drop_all(store.admin_engine, tables=others)


class Client:
    """Checkers, a run ledger, and a relay of an outbox, all with the same settings."""

    def __init__(self, store, settings):
        self.store, self.is_patient = store, settings is PATIENT
        self.name = "patient" if self.is_patient else "hasty"
        self.backoff = Backoff(LONG_S / 2, LONG_S / 2) if self.is_patient else SOON
        retention_s = settings["retention_s"]
        self.ledger = open_ledger(
            StoreConfig(store.url, store.table, prefix=f"{store.table}:", retention_s=retention_s)
        )
        self.checkers = [store.leased(**settings)]
        if store.kind != "redis":
            kept = {name: value for name, value in settings.items() if name != "lease_s"}
            self.offsets = OffsetChecker(store.engine(), table=store.table, retention_s=retention_s)
            self.checkers += [store.transactional(**kept), self.offsets]
            self.outbox = Outbox(store.engine(), table=store.table)

    def close(self):
        self.ledger.close()
        if self.store.kind != "redis":
            self.offsets.close()
            self.outbox.close()

    def work(self, driver):
        """Leave something in every table; `driver` ends the runs, which may be too old for this client by then."""
        for number, checker in enumerate(self.checkers[:2]):
            self.keep_keys(checker.protocol, KeySpace("orders", f"{self.name} {number}"))
        self.keep_runs(driver.ledger)
        if self.store.kind != "redis":
            if self.is_patient:
                self.offsets.begin({KeySpace("orders", "partition").key("0"): 7})
            self.publish()

    def keep_keys(self, protocol, space):
        def claim(name):
            return protocol.claim(ClaimRequest(space.key(name))).claim

        assert protocol.complete(claim("done"))
        assert protocol.release(claim("dead"), Failure("no", 1)).dead
        protocol.release(claim("failed"), Failure("no", 9))
        protocol.release(claim("held"), Failure("no", 9, backoff=self.backoff))
        if self.is_patient:
            protocol.abandon(claim("in progress"))

    def keep_runs(self, driver):
        lease_s = self.ledger.store.retention.margin_us / 1e6  # the longest
        for state in ("open", "committed", "aborted", *(["prepared"] if self.is_patient else [])):
            ref = self.ledger.begin(self.name, state, lease_s=lease_s).ref
            handled, *owned = (KeySpace(self.name, state).key(f"{number}").hash for number in range(3))
            claims = HandlerClaims(self.ledger, ref, lease_s)
            claims.acquire([handled])
            claims.finish([(handled, b"result")])
            if state == "aborted":  # such a run owns nothing
                driver.abort(ref)
                continue
            self.ledger.claim(ref, owned)
            if state != "open":
                driver.prepare(ref)
            if state == "committed":
                driver.commit(ref)

    def publish(self):
        """Be refused by a broker. The patient one leaves that, and buckets that it has not given back."""
        broker = Picky(refuses=[self.name])
        with self.store.admin_engine.begin() as connection:
            for body in (self.name, "behind it"):
                self.outbox.send(connection, Message("invoices", body.encode()), order_key=self.name)
            if self.is_patient:
                self.outbox.send(connection, Message("invoices", b"later"), delay_s=LONG_S / 2)
        lease_s = LONG_S if self.is_patient else 10.0
        with relay(self.outbox, broker, lease_s=lease_s, backoff=self.backoff):
            if not self.is_patient:
                until(lambda: len(broker.batches) > 3)
                broker.refuses.clear()
                until(lambda: broker.bodies == [self.name, "behind it"])
                return
            until(lambda: self.outbox.store.stats().held == 2)
        used = {bucket_of(lane_of("", name)) for name in ("patient", "hasty")}
        leases = BucketLeases(self.outbox.store, "", RELAY, LONG_S)
        leases.announce()
        leases.slots()
        leases.take([bucket for bucket in range(BUCKETS) if bucket not in used][: BUCKETS // 2])

    def collect(self):
        for checker in self.checkers:
            checker.garbage_collect()
            checker.garbage_collect_alone()
        self.ledger.collect()


def rows(store):
    """All rows, by table. Of a table of leases, those of a relay that lives; of Redis, what stays for long."""
    if store.kind == "redis":
        with Redis.from_url(store.url) as client:
            names = client.scan_iter(match=f"{store.table}:*", count=1000)
            return {
                "": {(name, client.dump(name)) for name in names if not 0 <= client.pttl(name) < LONG_S * 500}
            }
    with store.admin_engine.connect() as connection:
        return {
            table.name: {
                tuple(row)
                for row in connection.execute(sa.select(table)).all()
                if not table.name.endswith("_leases") or row.owner == RELAY
            }
            for table in expected(store.table).sorted_tables
        }


def names(store):
    return {(table, row[0]) for table, here in rows(store).items() for row in here}


def test_a_client_with_shorter_times_takes_its_own_rows_alone(client, shared_store):
    patient = client(PATIENT)
    patient.work(patient)
    kept = rows(shared_store)
    assert all(kept.values()), "a table without a row proves nothing"
    hasty = client(HASTY)
    hasty.work(patient)
    time.sleep(0.05)
    hasty.collect()
    left = rows(shared_store)
    assert {table: here - left[table] for table, here in kept.items() if here - left[table]} == {}

    def is_collected():
        patient.collect()
        left = rows(shared_store)
        return all(left[table] == here for table, here in kept.items())

    if shared_store.kind != "redis":
        until(is_collected, "what has expired by its own settings is kept")


def test_a_run_that_another_client_aborts_is_kept_as_long_as_its_own_client_says(client, shared_store):
    patient, hasty = client(PATIENT), client(HASTY)
    ref = patient.ledger.begin("patient", "dead", lease_s=SHORT_S).ref
    (handled,) = (KeySpace("patient", "dead").key("0").hash,)
    claims = HandlerClaims(patient.ledger, ref, LONG_S)
    claims.acquire([handled])
    claims.finish([(handled, b"result")])
    kept = names(shared_store)
    time.sleep(0.05)
    assert hasty.ledger.abort_lapsed(ref.token)
    time.sleep(0.05)
    hasty.collect()
    assert names(shared_store) == kept


@pytest.mark.parametrize("order", [(PATIENT, HASTY), (HASTY, PATIENT)], ids=["then hasty", "hasty first"])
def test_a_run_is_kept_for_the_longest_time_of_the_clients_that_began_it(client, shared_store, order):
    clients = {id(settings): client(settings) for settings in order}
    patient, hasty = clients[id(PATIENT)], clients[id(HASTY)]
    for each in clients.values():
        ref = each.ledger.begin("both", "1", lease_s=SHORT_S / 10, takeover=True).ref
        if each is patient:
            each.ledger.claim(ref, [KeySpace("both", "1").key("0").hash])
    kept = names(shared_store)
    patient.ledger.prepare(ref)
    hasty.ledger.commit(ref, accept_loss=True)
    time.sleep(0.05)
    hasty.collect()
    assert names(shared_store) == kept
