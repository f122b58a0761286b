"""KeyAdmin on every store: what it shows, and that it changes only what was seen."""

import secrets
from dataclasses import replace

import pytest

from idempotent.admin import KeyFilter
from idempotent.checkers.sql import store as sql_store
from idempotent.claims import ClaimRequest, Failure, KeyStatus, Verdict
from idempotent.keys import KeySpace, key_from_text
from idempotent.policy import Backoff
from tests.cli.support import BILLING, MAIL, dead, done, fill, lapsed, live
from tests.support.stores import ALL, SQL, open_store

IN_PROGRESS = frozenset(status for status in KeyStatus if status.in_progress)


@pytest.fixture(params=ALL)
def store(request):
    for store in open_store(request.param, request, reuse=True):
        if store.kind == "memory":
            # Each checker of a memory store has keys of its own: give all tests the same one.
            checker = store.leased()
            yield _OneChecker(store, checker)
        else:
            yield store


class _OneChecker:
    """A memory store whose checkers share their keys, as those of the others do."""

    kind = "memory"

    def __init__(self, store, checker):
        self._store, self._first = store, checker
        self.age = store.age

    def leased(self, **options):
        made = self._store.leased(**options)
        first = self._first
        made.entries, made.attempts, made.lock = first.entries, first.attempts, first.lock
        return made


@pytest.fixture
def admin(store):
    return store.leased().admin()


def texts(records):
    return sorted(record.text for record in records)


def test_it_lists_keys_by_consumer_state_and_lapse(store, admin):
    fill(store)
    everything = ["dead", "done", "lapsed", "live"]
    assert texts(admin.list(KeyFilter("orders.paid:billing"))) == [
        f"orders.paid:billing:{x}" for x in everything
    ]
    found = admin.list(KeyFilter(statuses=frozenset({KeyStatus.DEAD})))
    assert texts(found) == ["orders.paid:billing:dead", "orders.paid:mail:dead"]
    assert texts(admin.list(KeyFilter(statuses=IN_PROGRESS, lapsed=True))) == ["orders.paid:billing:lapsed"]
    assert len(list(admin.list(KeyFilter()))) == 5
    assert len(list(admin.list(KeyFilter(), limit=3))) == 3
    assert list(admin.list(KeyFilter(), limit=0)) == []


def test_many_keys_are_read_at_once(store, admin):
    fill(store)
    keys = [BILLING.key(name) for name in ("done", "dead", "live", "done", "none")]
    found = admin.get_many(keys)
    assert texts(found.values()) == [f"orders.paid:billing:{x}" for x in ("dead", "done", "live")]
    for key in keys[:3]:
        one = admin.get(key)
        assert (one.hash, one.status, one.fence) == (key.hash, found[key.hash].status, found[key.hash].fence)
    assert admin.get_many([]) == {}


def test_a_consumer_is_a_whole_name_and_no_pattern(store, admin):
    names = ["a%", "ab", "a_", "A%", "a%x"]
    for name in names:
        done(store, KeySpace(name, "g").key("1"))
    for name in names:
        wanted = KeySpace(name, "g").name
        assert texts(admin.list(KeyFilter(wanted))) == [f"{wanted}:1"]


def test_stats_tell_consumers_apart_exactly(store, admin):
    names = [
        KeySpace(subject, group) for subject, group in [("s", "b"), ("s", "b "), ("s", "B"), ("s:b", "c")]
    ]
    for space in names:
        done(store, space.key("1"))
        done(store, space.key("2"))
        dead(store, space.key("a:b:c"))
    counted = {(stats.consumer, stats.status): stats.count for stats in admin.stats()}
    expected = {(space.name, KeyStatus.DONE): 2 for space in names}
    expected |= {(space.name, KeyStatus.DEAD): 1 for space in names}
    assert counted == expected


def test_stats_count_lapsed_leases_and_remember_the_oldest_change(store, admin):
    fill(store)
    oldest = next(iter(admin.list(KeyFilter("orders.paid:mail")))).update_at_us
    by_state = {(stats.consumer, stats.status): stats for stats in admin.stats()}
    assert by_state["orders.paid:billing", KeyStatus.IN_PROGRESS].count == 2
    assert by_state["orders.paid:billing", KeyStatus.IN_PROGRESS].lapsed == 1
    assert by_state["orders.paid:mail", KeyStatus.DEAD].oldest_update_us == oldest


def test_stats_of_very_long_names_are_one_line_and_not_one_for_each_key(store, admin):
    space = KeySpace("s" * 300, "g")
    for _ in range(5):
        done(store, space.key(secrets.token_hex(30)))
    assert sum(stats.count for stats in admin.stats()) == 5
    assert len(admin.stats()) == 1
    assert len(list(admin.list(KeyFilter(space.name)))) == 5


def test_a_record_tells_everything(store, admin):
    fill(store)
    record = admin.get(BILLING.key("done"))
    assert (record.status, record.result, record.attempts, record.last_error) == (
        KeyStatus.DONE,
        b'{"charged":7}',
        0,
        None,
    )
    record = admin.get(BILLING.key("dead"))
    assert (record.status, record.attempts, record.last_error) == (
        KeyStatus.DEAD,
        1,
        "ValueError: no such customer",
    )
    record = admin.get(BILLING.key("live"))
    assert record.status.in_progress
    assert not record.lapsed
    assert record.lease_until_us > record.now_us > record.update_at_us - 1
    assert admin.get(BILLING.key("lapsed")).lapsed
    assert admin.get(BILLING.key("never seen")) is None


@pytest.mark.parametrize("state", ["done", "dead", "lapsed"])
def test_a_reopened_key_and_its_attempts_are_gone(store, admin, state):
    fill(store)
    key = BILLING.key(state)
    assert admin.reopen(admin.get(key))
    assert admin.get(key) is None
    assert store.leased().protocol.claim(ClaimRequest(key)).verdict is Verdict.ACQUIRED
    assert admin.get(key).attempts == 0


@pytest.mark.parametrize("state", ["dead", "lapsed"])
def test_a_resolved_key_makes_its_deliveries_duplicates(store, admin, state):
    fill(store)
    key = BILLING.key(state)
    assert admin.mark_done(admin.get(key))
    assert admin.get(key).status is KeyStatus.DONE
    assert store.leased().protocol.claim(ClaimRequest(key)).verdict is Verdict.DUPLICATE


@pytest.mark.parametrize("decision", ["reopen", "mark_done"])
def test_a_key_that_waits_for_its_retry_does_not_wait_for_a_person(store, admin, decision):
    key = BILLING.key("1")
    checker = store.leased(lease_s=60.0)
    backoff = Backoff(600.0, 600.0)
    checker.protocol.release(
        checker.protocol.claim(ClaimRequest(key)).claim, Failure("ValueError: no", 5, backoff=backoff)
    )
    store.age(601.0)
    record = admin.get(key)
    assert (record.held, record.lapsed, record.attempts, record.last_error) == (
        True,
        False,
        1,
        "ValueError: no",
    )
    assert not list(admin.list(KeyFilter(lapsed=True)))
    assert sum(stats.lapsed for stats in admin.stats()) == 0
    store.age(-300.0)
    record = admin.get(key)
    assert record.lease_until_us > record.now_us
    assert getattr(admin, decision)(record)
    expected = Verdict.ACQUIRED if decision == "reopen" else Verdict.DUPLICATE
    assert checker.protocol.claim(ClaimRequest(key)).verdict is expected


def test_a_live_lease_is_left_alone(store, admin):
    live(store, BILLING.key("1"))
    record = admin.get(BILLING.key("1"))
    assert not admin.reopen(record)
    assert not admin.mark_done(record)
    # Nor does a record help that says otherwise.
    forged = replace(record, lease_until_us=1)
    assert not admin.reopen(forged)
    assert not admin.mark_done(forged)
    assert admin.get(BILLING.key("1")).status.in_progress


def test_a_claim_that_never_lapses_can_be_freed_by_a_person(store, admin):
    live(store, BILLING.key("1"), lease_s=None)
    record = admin.get(BILLING.key("1"))
    assert record.lease_until_us is None
    assert not record.lapsed
    assert admin.reopen(record)
    assert admin.get(BILLING.key("1")) is None


def test_a_key_that_was_taken_over_meanwhile_is_left_alone(store, admin):
    key = BILLING.key("1")
    lapsed(store, key)
    seen = admin.get(key)
    live(store, key)
    assert not admin.reopen(seen)
    assert not admin.mark_done(seen)
    assert admin.get(key).fence > seen.fence


def test_a_new_life_of_a_key_is_not_the_one_that_was_seen(store, admin):
    key = MAIL.key("1")
    dead(store, key)
    seen = admin.get(key)
    assert admin.reopen(seen)
    dead(store, key)
    assert not admin.reopen(seen)
    assert not admin.mark_done(seen)
    assert admin.get(key).status is KeyStatus.DEAD


@pytest.mark.parametrize("kind", SQL)
def test_pages_of_any_size_show_every_key_once(kind, request, monkeypatch):
    monkeypatch.setattr(sql_store, "PAGE", 7)
    for store in open_store(kind, request, reuse=True):
        checker = store.leased()
        for start in range(0, 50, 25):
            requests = [ClaimRequest(BILLING.key(str(n))) for n in range(start, start + 25)]
            for decision in checker.protocol.claim_many(requests):
                checker.protocol.complete(decision.claim)
        admin = checker.admin()
        found = list(admin.list(KeyFilter()))
        assert len(found) == 50
        assert [record.hash for record in found] == sorted({record.hash for record in found})
        assert len(list(admin.list(KeyFilter(), limit=21))) == 21
        # The way of a bulk change: keys go while they are listed.
        assert sum(admin.reopen(record) for record in admin.list(KeyFilter())) == 50
        assert list(admin.list(KeyFilter())) == []


def test_long_consumers_are_told_apart_and_their_texts_lead_back(store, admin):
    names = [KeySpace("t" * 248 + end, group) for end in "ab" for group in ("g", "g" * 249)]
    for space in names:
        done(store, space.key("1"))
        dead(store, space.key("2"))
    found = {(stats.consumer, stats.status): stats.count for stats in admin.stats()}
    assert found == {
        (space.name, status): 1 for space in names for status in (KeyStatus.DONE, KeyStatus.DEAD)
    }
    for space in names:
        records = {record.hash: record for record in admin.list(KeyFilter(space.name))}
        assert set(records) == {space.key("1").hash, space.key("2").hash}
        for record in records.values():
            assert key_from_text(record.text).hash == record.hash
            assert admin.get(key_from_text(record.text)).status is record.status


def test_a_measure_counts_what_a_person_may_have_to_look_at(store, admin):
    assert not admin.measure().consumers
    fill(store)
    live(store, BILLING.key("another live one"))
    done(store, BILLING.key("old"), retention_s=5.0)
    waits = store.leased()
    claim = waits.protocol.claim(ClaimRequest(BILLING.key("waits for its backoff"))).claim
    waits.protocol.release(claim, Failure("no", 5, backoff=Backoff(3600.0, 3600.0)))
    measured = admin.measure()
    assert measured.expired == 0
    billing, mail = measured.consumers[BILLING.name], measured.consumers[MAIL.name]
    assert (billing.dead, billing.lapsed) == (1, 1)
    assert 0 < billing.oldest_claim_s < 3600
    assert (mail.dead, mail.lapsed, mail.oldest_claim_s) == (1, 0, 0)
    store.age(60.0)
    # Redis has deleted it by itself.
    assert admin.measure().expired == (0 if store.kind == "redis" else 1)
