"""How many statements and scripts a call sends."""

from __future__ import annotations

import pytest

from idempotent.adapters.spark.ledger import RunLedger
from idempotent.adapters.spark.ledger.claims import ClaimState
from idempotent.adapters.spark.ledger.handler_claims import HandlerClaims
from idempotent.adapters.spark.ledger.run_claims import RowVerdict, RunClaims
from idempotent.stores.redis.scripts import RedisStore
from idempotent.stores.sql import cursor
from tests.adapters.spark.ledger import ledgers
from tests.adapters.spark.ledger.contract.base import keys

LEASE_S = 60.0
MODULES = ("sql", "sql_claims")


@pytest.fixture(params=["sqlite", "mysql", "postgres", "redis"])
def place(request):
    yield from ledgers.open_place(request.param, request)


@pytest.fixture
def sent(monkeypatch):
    """Everything that is sent to a store, in order."""
    seen = []

    def counting(real):
        def call(self_or_connection, statement, *arguments, **options):
            seen.append(statement)
            return real(self_or_connection, statement, *arguments, **options)

        return call

    for module in MODULES:
        for name in ("execute", "query"):
            path = f"idempotent.adapters.spark.ledger.{module}.{name}"
            monkeypatch.setattr(path, counting(getattr(cursor, name)))
    monkeypatch.setattr(RedisStore, "run", counting(RedisStore.run))
    return seen


def count(sent, call):
    sent.clear()
    result = call()
    return len(sent), result


def test_round_trips_of_1000_keys(place, sent):
    ledger = place.ledger()
    again = 2 if place.kind in ("sqlite", "postgres") else 1  # ON CONFLICT DO NOTHING does not tell the owner
    ref = ledger.begin("orders", "r1", lease_s=LEASE_S).ref
    claims, hashes = RunClaims(ledger, ref), keys(1000)
    assert count(sent, lambda: set(claims.decide(hashes))) == (1, {RowVerdict.NEW})
    assert count(sent, lambda: set(claims.decide(hashes))) == (again, {RowVerdict.NEW})
    assert count(sent, lambda: ledger.prepare(ref))[0] == 1
    ledger.commit(ref)
    other = ledger.begin("orders", "r2", lease_s=LEASE_S).ref
    claims = RunClaims(ledger, other)
    # One more to learn that the owner has committed, once for each task.
    assert count(sent, lambda: set(claims.decide(hashes))) == (again + 1, {RowVerdict.DUPLICATE})
    assert count(sent, lambda: set(claims.decide(hashes))) == (again, {RowVerdict.DUPLICATE})


def test_round_trips_of_taking_over_1000_keys(place, sent):
    ledger = place.ledger()
    again = 2 if place.kind in ("sqlite", "postgres") else 1
    dead, ref = (ledger.begin("orders", name, lease_s=LEASE_S).ref for name in ("dead", "r1"))
    hashes = keys(1000)
    ledger.claim(dead, hashes)
    ledger.abort(dead)
    assert count(sent, lambda: set(RunClaims(ledger, ref).decide(hashes))) == (again + 2, {RowVerdict.NEW})


def test_round_trips_of_1000_effects(place, sent):
    ledger, hashes = place.ledger(), keys(1000)
    ref = ledger.begin("orders", "r1", lease_s=LEASE_S).ref
    claims = HandlerClaims(ledger, ref, LEASE_S)
    assert count(sent, lambda: claims.acquire(hashes))[0] == 1
    assert count(sent, lambda: claims.renew(hashes))[0] == 1
    results = [(key_hash, b"result") for key_hash in hashes]
    assert count(sent, lambda: claims.finish(results))[0] == 1


def test_round_trips_of_1000_effects_in_a_transaction(place, sent):
    if place.kind == "redis":
        pytest.skip("Redis has no such transactions")
    store, hashes = place.store(), keys(1000)
    ref = RunLedger(store).begin("orders", "r1", lease_s=LEASE_S).ref

    def effect():
        def claim(within):
            claims = HandlerClaims(RunLedger(within), ref, LEASE_S, state=ClaimState.DONE)
            claims.acquire(hashes)
            return claims

        claims, transaction = store.transaction(claim)
        with transaction:
            transaction.demand_claims(claims, hashes)
            transaction.commit()

    # Beside BEGIN and COMMIT: the claims are inserted as done.
    assert count(sent, effect)[0] == 1
    other = HandlerClaims(RunLedger(store), ref, LEASE_S).acquire(hashes)
    assert {each.state for each in other.values()} == {ClaimState.DONE}


def test_round_trips_of_a_run(place, sent):
    ledger = place.ledger()
    begun, row = count(sent, lambda: ledger.begin("orders", "r1", lease_s=LEASE_S))
    resumed, row = count(sent, lambda: ledger.begin("orders", "r1", lease_s=LEASE_S, takeover=True))
    renewed, _ = count(sent, lambda: ledger.renew(row.ref, LEASE_S))
    prepared, _ = count(sent, lambda: ledger.prepare(row.ref))
    committed, _ = count(sent, lambda: ledger.commit(row.ref))
    # Redis asks itself, beside these, what it has forgotten: INFO at begin, HGET and INFO at prepare and commit.
    # PostgreSQL and MySQL are told to wait briefly for the row of a run that is resumed.
    told = place.kind in ("postgres", "mysql")
    assert (begun, resumed, renewed, prepared, committed) == (3, 3 + told, 1, 1, 1)
