"""How long Redis keeps a key."""

import time

import pytest

from idempotent.claims import ClaimRequest, Completion, Failure, KeyStatus, Lapsed, Verdict, new_owner
from tests.checkers.redis.stored import HOUR_S, KEYS, name_of, run_python, stored_key


def ttl_s(client, name):
    return client.pttl(name) / 1000


def test_a_key_lives_until_its_expiry_which_completing_does_not_move(make, client):
    checker = make(lease_s=1, retention_s=HOUR_S)
    claim = checker.protocol.claim(ClaimRequest(KEYS.key("7"))).claim
    name = name_of(checker, claim.key)
    expires_at_us = claim.fence + 3_600_000_000
    assert expires_at_us <= client.pexpiretime(name) * 1000 <= expires_at_us + 2000
    time.sleep(0.05)
    checker.protocol.complete(claim)
    assert expires_at_us <= client.pexpiretime(name) * 1000 <= expires_at_us + 2000
    checker.protocol.complete(claim, b"result")  # by the other way through the script
    assert expires_at_us <= client.pexpiretime(name) * 1000 < expires_at_us + 2000


def test_keys_completed_together_keep_their_own_times(make, client):
    early, late = make(lease_s=30, retention_s=HOUR_S), make(lease_s=30, retention_s=2 * HOUR_S)
    endless = make(lease_s=None, retention_s=3 * HOUR_S)
    owner = new_owner()
    claims = [
        checker.protocol.claim(ClaimRequest(KEYS.key(str(n)), owner)).claim
        for n, checker in enumerate((early, late, early, endless))
    ]
    names = [name_of(early, claim.key) for claim in claims]
    before = [stored_key(client.get(name)) for name in names]
    assert early.protocol.complete_many([Completion(claim) for claim in claims]) == [True] * 4
    after = [stored_key(client.get(name)) for name in names]
    assert [key.expires_at_us for key in after] == [key.expires_at_us for key in before]
    assert [key.status for key in after] == [KeyStatus.DONE] * 4


def test_a_key_outlives_its_lease_though_its_retention_is_shorter(make, client):
    checker = make(lease_s=60, retention_s=2)
    claim = checker.protocol.claim(ClaimRequest(KEYS.key("7"))).claim
    name = name_of(checker, claim.key)
    assert 50 < ttl_s(client, name) <= 60.1
    client.pexpire(name, 5000)
    assert checker._renew_many([claim]) == [True]
    assert 50 < ttl_s(client, name) <= 60.1
    checker.protocol.complete(claim)
    assert ttl_s(client, name) <= 2


@pytest.mark.parametrize(
    ("status", "lease_s"), [(KeyStatus.IN_PROGRESS_PARK, 10.0), (KeyStatus.IN_PROGRESS, None)]
)
def test_what_must_not_be_forgotten_has_no_time_to_live_until_it_is_final(make, client, status, lease_s):
    checker = make(lease_s=lease_s, retention_s=HOUR_S)
    claim = checker.protocol.claim(ClaimRequest(KEYS.key("7"), status=status)).claim
    name = name_of(checker, claim.key)
    assert client.pttl(name) == -1
    assert checker._renew_many([claim]) == [True]
    assert client.pttl(name) == -1
    checker.protocol.complete(claim)
    assert HOUR_S - 10 < ttl_s(client, name) <= HOUR_S + 0.01  # Redis rounds up


def test_a_parked_key_and_its_reason_stay_for_a_person(make, client):
    checker = make(lease_s=0.05, retention_s=HOUR_S)
    park = ClaimRequest(KEYS.key("7"), status=KeyStatus.IN_PROGRESS_PARK, on_lapsed=Lapsed.PARK)
    claim = checker._claim(park).claim  # claimed past the protocol, so not renewed
    time.sleep(0.1)
    other = make(lease_s=0.05, retention_s=HOUR_S)
    assert other.protocol.claim(ClaimRequest(KEYS.key("7"), on_lapsed=Lapsed.PARK)).verdict is Verdict.DEAD
    name = name_of(checker, claim.key)
    assert client.pttl(name) == client.pttl(name + b":f") == -1
    assert "effect unknown" in other.protocol.claim(ClaimRequest(KEYS.key("7"))).reason


def test_a_key_that_is_final_after_its_expiry_is_kept_once_more(make, client):
    brief = make(lease_s=HOUR_S, retention_s=0.05)
    claim = brief.protocol.claim(ClaimRequest(KEYS.key("7"), status=KeyStatus.IN_PROGRESS_PARK)).claim
    time.sleep(0.1)
    checker = make(lease_s=HOUR_S, retention_s=HOUR_S)
    checker.protocol.complete(claim)
    assert HOUR_S - 150 < ttl_s(client, name_of(checker, claim.key)) <= HOUR_S + 0.01


def test_the_failures_of_a_dead_key_go_with_it(make, client):
    checker = make(retention_s=HOUR_S, dead_retention_s=HOUR_S / 2)
    claim = checker.protocol.claim(ClaimRequest(KEYS.key("7"))).claim
    name = name_of(checker, claim.key)
    checker.protocol.release(claim, Failure("boom", max_attempts=1))
    assert client.pexpiretime(name) == client.pexpiretime(name + b":f")
    assert HOUR_S / 2 - 10 < ttl_s(client, name) <= HOUR_S / 2 + 0.01
    checker.protocol.complete(claim)
    assert client.pexpiretime(name) == client.pexpiretime(name + b":f")
    assert HOUR_S - 10 < ttl_s(client, name) <= HOUR_S + 0.01


def test_failures_are_forgotten_after_the_retention(make, client):
    checker = make(retention_s=HOUR_S)
    claim = checker.protocol.claim(ClaimRequest(KEYS.key("7"))).claim
    name = name_of(checker, claim.key)
    checker.protocol.release(claim, Failure("boom", max_attempts=5))
    assert not client.exists(name)
    assert HOUR_S - 10 < ttl_s(client, name + b":f") <= HOUR_S + 0.01


def test_expired_keys_go_by_themselves(make, client):
    checker = make(lease_s=0.05, retention_s=0.05)
    checker.protocol.complete(checker.protocol.claim(ClaimRequest(KEYS.key("7"))).claim)
    time.sleep(0.1)
    assert checker.garbage_collect() == 0
    assert not client.exists(name_of(checker, KEYS.key("7")))


def test_the_clock_of_the_client_does_not_matter(make, redis_url, prefix):
    """A process whose clock is a day ahead neither takes over a live lease nor dates a key."""
    ours = make(lease_s=30).protocol.claim(ClaimRequest(KEYS.key("7"))).claim
    script = """
        import sys, time
        real = time.time
        time.time = lambda: real() + 86400
        time.time_ns = lambda: int(time.time() * 1e9)
        from idempotent.checkers import RedisChecker
        from idempotent.claims import ClaimRequest
        from idempotent.keys import KeySpace
        checker = RedisChecker(sys.argv[1], prefix=sys.argv[2])
        keys = KeySpace("orders.paid", "billing")
        print(checker.protocol.claim(ClaimRequest(keys.key("7"))).verdict.name)
        print(checker.protocol.claim(ClaimRequest(keys.key("8"))).claim.fence)
    """
    said = run_python(script, redis_url, prefix).split()
    assert said[0] == "IN_PROGRESS"
    assert 0 <= int(said[1]) - ours.fence < 60_000_000
