"""KeyAdmin over Redis, where keys are found by their names."""

import time

from idempotent.admin import KeyFilter
from idempotent.checkers import RedisChecker
from idempotent.claims import ClaimRequest, Failure, KeyStatus, Verdict
from idempotent.keys import KeySpace

KEYS = KeySpace("orders.paid", "billing")


def fill(checker, count):
    for n in range(count):
        checker.protocol.complete(checker.protocol.claim(ClaimRequest(KEYS.key(str(n)))).claim, b"x")


def test_many_keys_are_each_shown_once(make):
    checker = make()
    fill(checker, 1500)
    texts = [record.text for record in checker.admin().list(KeyFilter())]
    assert sorted(texts) == sorted(f"orders.paid:billing:{n}" for n in range(1500))
    assert len(list(checker.admin().list(KeyFilter(), limit=7))) == 7
    assert [(stats.consumer, stats.status, stats.count) for stats in checker.admin().stats()] == [
        ("orders.paid:billing", KeyStatus.DONE, 1500)
    ]


def test_what_else_is_in_the_database_is_not_shown(make, client, prefix):
    checker = make()
    fill(checker, 3)
    claim = checker.protocol.claim(ClaimRequest(KEYS.key("failed"))).claim
    checker.protocol.release(claim, Failure("boom", max_attempts=5))
    client.set(f"{prefix}{{00}}:nonsense", "a")
    client.set(f"x{prefix}", "a")
    client.hset(f"{prefix}hash", "a", "b")
    assert len(list(checker.admin().list(KeyFilter()))) == 3


def test_a_prefix_is_no_pattern(client, prefix):
    odd = RedisChecker(client, prefix=f"{prefix}[a]*?\\^:")
    plain = RedisChecker(client, prefix=f"{prefix}azz^:")
    fill(odd, 2)
    fill(plain, 3)
    assert len(list(odd.admin().list(KeyFilter()))) == 2
    assert len(list(plain.admin().list(KeyFilter()))) == 3
    odd.close()
    plain.close()


def test_a_decision_comes_too_late_for_a_key_that_changed(make):
    checker = make(lease_s=0.05)
    key = KEYS.key("7")
    checker._claim(ClaimRequest(key))
    time.sleep(0.1)
    admin = checker.admin()
    seen = admin.get(key)
    assert seen.lapsed
    taken = make(lease_s=30).protocol.claim(ClaimRequest(key))
    assert taken.lapsed
    assert not admin.reopen(seen)
    assert not admin.mark_done(seen)
    live = admin.get(key)
    assert not admin.reopen(live)
    assert not admin.mark_done(live)
    assert checker.protocol.complete(taken.claim)


def test_a_decision_comes_too_late_for_a_key_with_a_failure_more(make):
    checker = make(lease_s=0.05)
    key = KEYS.key("7")
    claim = checker._claim(ClaimRequest(key)).claim
    time.sleep(0.1)
    admin = checker.admin()
    seen = admin.get(key)
    checker.protocol.release(claim, Failure("boom", max_attempts=5))
    assert not admin.reopen(seen)
    checker._claim(ClaimRequest(key))
    time.sleep(0.1)
    assert admin.reopen(admin.get(key))


def test_a_key_marked_done_is_remembered_as_long_as_any(make, client):
    checker = make(retention_s=3600)
    key = KEYS.key("7")
    checker.protocol.release(checker.protocol.claim(ClaimRequest(key)).claim, Failure("boom", max_attempts=1))
    admin = checker.admin()
    assert admin.mark_done(admin.get(key))
    assert checker.protocol.claim(ClaimRequest(key)).verdict is Verdict.DUPLICATE
    assert 3_590_000 < client.pttl(checker.store.names.name(key.hash)) <= 3_600_001


def test_reopening_forgets_the_attempts_too(make, client):
    checker = make()
    key = KEYS.key("7")
    checker.protocol.release(checker.protocol.claim(ClaimRequest(key)).claim, Failure("boom", max_attempts=1))
    admin = checker.admin()
    assert admin.reopen(admin.get(key))
    assert not client.exists(checker.store.names.name(key.hash) + b":f")
    claim = checker.protocol.claim(ClaimRequest(key)).claim
    assert checker.protocol.release(claim, Failure("boom", max_attempts=5)).attempts == 1
