"""What docs/effects-outside.md promises of tokens and fences, on every store."""

from __future__ import annotations

import sqlite3

import pytest

from idempotent import Message, Outcome, Registry, current_claim
from idempotent.checkers import MemoryChecker
from idempotent.claims import Failure
from idempotent.testing import abandon_claim

LEASE_S = 600.0


class Warehouse:
    """Takes the address of an order from whoever has the greatest fence so far."""

    def __init__(self) -> None:
        self._rows = sqlite3.connect(":memory:")
        self._rows.execute("CREATE TABLE shipments (address TEXT, fence INTEGER NOT NULL)")
        self._rows.execute("INSERT INTO shipments VALUES (NULL, 0)")

    def send_to(self, address: str, fence: int) -> bool:
        sql = "UPDATE shipments SET address = ?, fence = ? WHERE fence < ?"
        return self._rows.execute(sql, (address, fence, fence)).rowcount == 1

    @property
    def address(self) -> str | None:
        return self._rows.execute("SELECT address FROM shipments").fetchone()[0]


def order(message_id: str = "1") -> Message:
    return Message("orders", id=message_id)


def test_each_run_of_a_message_has_the_same_token_and_a_greater_fence(store):
    """After a failure, a death, and a person who reopens the key."""
    claims, checker = [], store.leased(lease_s=LEASE_S)

    @Registry().consumer("orders", checker=checker)
    def handle(_: Message) -> None:
        claims.append(current_claim())
        if len(claims) == 1:
            raise ValueError("the first run fails")

    assert handle.process(order()).outcome is Outcome.FAILED
    claims.append(abandon_claim(handle, order()))
    store.age(LEASE_S * 1.1)
    assert handle.process(order()).outcome is Outcome.PROCESSED
    admin = checker.admin()
    assert admin.reopen(admin.get(handle.key_of("1")))
    assert handle.process(order()).outcome is Outcome.PROCESSED
    assert {claim.key.token for claim in claims} == {handle.key_of("1").token}
    fences = [claim.fence for claim in claims]
    assert fences == sorted(set(fences))
    assert len(fences) == 4
    assert fences[0] > 0


def test_each_run_in_a_transaction_has_the_same_token_and_a_greater_fence(sql_store):
    claims = []

    @Registry().consumer("orders", checker=sql_store.transactional())
    def handle(_: Message) -> None:
        claims.append(current_claim())
        if len(claims) < 3:
            raise ValueError("it fails")

    outcomes = [handle.process(order()).outcome for _ in range(3)]
    assert outcomes == [Outcome.FAILED, Outcome.FAILED, Outcome.PROCESSED]
    assert {claim.key.token for claim in claims} == {handle.key_of("1").token}
    assert 0 < claims[0].fence < claims[1].fence < claims[2].fence


def test_tokens_of_messages_and_of_groups_differ():
    registry = Registry()
    billing, shipping = (
        registry.consumer("orders", group=group, checker=MemoryChecker())(lambda _: None)
        for group in ("billing", "shipping")
    )
    tokens = {consumer.key_of(name).token for consumer in (billing, shipping) for name in "12"}
    assert len(tokens) == 4
    assert all(len(token) == 40 and token.isascii() for token in tokens)


def test_a_fence_refuses_whoever_lost_the_key_and_its_failure_counts_nothing(store):
    warehouse, checker = Warehouse(), store.leased(lease_s=LEASE_S)

    @Registry().consumer("orders", checker=checker)
    def ship(_: Message) -> None:
        assert warehouse.send_to("new", current_claim().fence)

    paused = abandon_claim(ship, order())
    store.age(LEASE_S * 1.1)
    assert ship.process(order()).outcome is Outcome.PROCESSED
    assert not warehouse.send_to("old", paused.fence)
    assert warehouse.address == "new"
    attempts = checker.admin().get(ship.key_of("1")).attempts
    assert not checker.protocol.release(paused, Failure("refused", 5)).owned
    assert checker.admin().get(ship.key_of("1")).attempts == attempts
    assert ship.process(order()).outcome is Outcome.DUPLICATE


def test_a_parked_key_whose_process_had_only_been_paused_is_done(store):
    checker = store.leased(lease_s=LEASE_S)
    handle = Registry().consumer("orders", checker=checker, on_expired_lease="park")(lambda _: None)
    paused = abandon_claim(handle, order())
    store.age(LEASE_S * 1.1)
    assert handle.process(order()).outcome is Outcome.DEAD
    assert checker.protocol.complete(paused)
    assert handle.process(order()).outcome is Outcome.DUPLICATE


@pytest.mark.parametrize("policy", ["retry", "park", lambda _: True], ids=["retry", "park", "callable"])
def test_a_handler_that_raises_runs_again_whatever_its_lapsed_leases_do(policy):
    ran = []

    @Registry().consumer("orders", checker=MemoryChecker(), on_expired_lease=policy)
    def handle(message: Message) -> None:
        ran.append(message.id)
        if len(ran) == 1:
            raise TimeoutError("the answer was lost")

    outcomes = [handle.process(order()).outcome for _ in range(2)]
    assert outcomes == [Outcome.FAILED, Outcome.PROCESSED]


def test_a_run_without_protection_has_the_token_and_a_fence_that_is_refused(monkeypatch):
    monkeypatch.setenv("IDEMPOTENT_DISABLED", "all")
    claims = []
    handle = Registry().consumer("orders", checker=MemoryChecker())(lambda _: claims.append(current_claim()))
    for _ in range(2):
        assert handle.process(order()).outcome is Outcome.PROCESSED
    assert {claim.key.token for claim in claims} == {handle.key_of("1").token}
    assert not Warehouse().send_to("anywhere", claims[-1].fence)
