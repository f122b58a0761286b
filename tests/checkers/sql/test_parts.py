"""Many keys, and large results, go into several statements; a result that the server cannot take is left out."""

from __future__ import annotations

import secrets
from contextlib import contextmanager

import pytest

from idempotent import Message, Registry
from idempotent.checkers import checker_from_url
from idempotent.checkers.sql.keytable import PART_BYTES, parts_of
from idempotent.claims import Claim, ClaimRequest, Completion, new_owner
from idempotent.keys import KeySpace
from idempotent.migrations import upgrade
from idempotent.observe.counting import Counters
from idempotent.observe.events import Event
from idempotent.stores.sql.dialects import MAX_ROWS
from tests.support.services import PrivateMariaDb
from tests.support.stores import open_store

SPACE = KeySpace("orders", "billing")


def claimed(checker, number):
    owner = new_owner()
    decisions = checker.protocol.claim_many([ClaimRequest(SPACE.key(str(i)), owner) for i in range(number)])
    return [decision.claim for decision in decisions]


def test_a_part_is_limited_in_rows_and_in_bytes():
    def sizes(results):
        claims = [Claim(SPACE.key(str(number)), owner=b"o") for number in range(len(results))]
        parts = parts_of([Completion(c, r and b"x" * r) for c, r in zip(claims, results, strict=True)])
        return [len(part) for part in parts]

    assert sizes([None] * (2 * MAX_ROWS + 1)) == [MAX_ROWS, MAX_ROWS, 1]
    assert sizes([PART_BYTES] * 3) == [1, 1, 1]
    assert sizes([PART_BYTES // 2] * 4) == [2, 2]
    assert sizes([5 * PART_BYTES] * 2) == [1, 1]
    assert sizes([]) == []


def test_a_part_has_one_owner_or_owners_of_one_claim_each_and_each_key_once():
    def parts(*claims):
        completions = [Completion(Claim(SPACE.key(name), owner=owner)) for name, owner in claims]
        return sorted(sorted(c.claim.owner for c in part) for part in parts_of(completions))

    assert parts(("1", b"a"), ("2", b"b"), ("3", b"c")) == [[b"a", b"b", b"c"]]
    assert parts(("1", b"a"), ("2", b"a"), ("3", b"c"), ("4", b"d")) == [[b"a", b"a"], [b"c", b"d"]]
    assert parts(("1", b"a"), ("1", b"b")) == [[b"a"], [b"b"]]


@pytest.mark.slow
# PostgreSQL takes 65,535 parameters, SQLite 32,766.
@pytest.mark.parametrize(
    ("kind", "step", "number"),
    [("sqlite", "complete", 33_000), ("sqlite", "release", 33_000), ("postgres", "complete", 66_000)],
)
def test_more_keys_than_a_statement_has_parameters(request, kind, step, number):
    with contextmanager(open_store)(kind, request) as store:
        complete_or_release(store, step, number)


def complete_or_release(sql_store, step, number):
    checker = sql_store.leased()
    claims = claimed(checker, number)
    if step == "complete":
        assert all(checker.protocol.complete_many([Completion(claim) for claim in claims]))
        assert not any(
            checker.protocol.complete_many(
                [
                    Completion(Claim(claims[0].key, owner=b"o" * 16)),
                    Completion(Claim(claims[-1].key, owner=b"o" * 16)),
                ]
            )
        )
    else:
        assert all(
            released.owned for released in checker.protocol.release_many([(claim, None) for claim in claims])
        )
        assert [claim.fence > 0 for claim in claimed(checker, 2)] == [True, True]


def test_more_results_than_fit_one_packet(sql_store):
    checker = sql_store.leased()
    claims = claimed(checker, 25)
    results = [bytes([number]) * 900_000 for number in range(25)]
    assert all(
        checker.protocol.complete_many([Completion(c, r) for c, r in zip(claims, results, strict=True)])
    )
    again = checker.protocol.claim_many([ClaimRequest(claim.key) for claim in claims])
    assert [decision.result for decision in again] == results


@pytest.fixture
def small_packets(spare):
    """URL and table of a server that takes packets of at most 1 MB."""
    server = spare(PrivateMariaDb, "--max-allowed-packet=1M")
    table = f"dedup_{secrets.token_hex(4)}"
    upgrade(server.url, table=table)
    return server.url, table


@pytest.mark.parametrize("scheme", ["", "transactional+"])
@pytest.mark.parametrize("together", [False, True])
def test_a_result_that_the_server_cannot_take_is_left_out_and_the_effect_stands(
    small_packets, scheme, together
):
    url, table = small_packets
    ran, counts = [], Counters()
    checker = checker_from_url(f"{scheme}{url}", table=table)
    consumer = Registry(observers=[counts]).consumer("orders", checker=checker, store_result=True)(
        lambda message: ran.append(message.id) or "x" * int(message.body)
    )
    messages = [Message("orders", b"900000", id="large"), Message("orders", b"300000", id="fits")]
    results = consumer.process_many(messages) if together else list(map(consumer.process, messages))
    assert [result.outcome.value for result in results] == ["processed"] * 2
    again = [consumer.process(message) for message in messages]
    assert [result.outcome.value for result in again] == ["duplicate"] * 2
    assert [result.value for result in again] == [None, "x" * 300_000]
    assert ran == ["large", "fits"]
    assert counts.snapshot()[consumer.name, Event.RESULT_NOT_STORED] == 1
    checker.close()
