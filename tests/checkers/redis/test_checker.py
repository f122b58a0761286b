"""What is Redis's own: scripts, commands and results. The rest is the contract."""

import redis
import redis.asyncio

from idempotent import Message, Outcome, Registry
from idempotent.claims import ClaimRequest, Completion, KeyStatus, Verdict
from idempotent.errors import StoreError
from idempotent.stores.redis.scripts import MAX_KEYS
from tests.checkers.redis.stored import KEYS


def test_a_result_replaces_an_earlier_one_of_the_same_owner(make, client):
    checker = make()
    claim = checker.protocol.claim(ClaimRequest(KEYS.key("7"), fingerprint=b"f" * 20)).claim
    checker.protocol.complete(claim, b"a long first result")
    checker.protocol.complete(claim, b"")
    checker.protocol.complete(claim)
    again = checker.protocol.claim(ClaimRequest(KEYS.key("7")))
    assert (again.verdict, again.result, again.fingerprint) == (Verdict.DUPLICATE, b"", b"f" * 20)


def test_a_flushed_script_cache_costs_nothing_but_a_round_trip(make, client):
    checker = make()
    key = KEYS.key("7")
    checker.protocol.claim(ClaimRequest(KEYS.key("warm")))
    client.script_flush()
    claim = checker.protocol.claim(ClaimRequest(key)).claim
    client.script_flush()
    assert checker._renew_many([claim]) == [True]
    client.script_flush()
    assert checker.protocol.complete(claim)
    client.script_flush()
    assert [
        d.verdict for d in checker.protocol.claim_many([ClaimRequest(key), ClaimRequest(KEYS.key("8"))])
    ] == [
        Verdict.DUPLICATE,
        Verdict.ACQUIRED,
    ]
    client.script_flush()
    assert checker.admin().get(key).status is KeyStatus.DONE


def test_a_command_for_each_125_keys_claims_and_completes(make, private_redis):
    server = private_redis()
    with redis.Redis.from_url(server.url) as client:
        checker = make(client)
        for _ in range(2):  # the first round loads the scripts
            client.config_resetstat()
            many = checker.protocol.claim_many([ClaimRequest(KEYS.key(f"{_}-{n}")) for n in range(500)])
            checker.protocol.complete_many([Completion(decision.claim) for decision in many])
            checker.protocol.complete(checker.protocol.claim(ClaimRequest(KEYS.key(f"{_}"))).claim)
        assert client.info("commandstats")["cmdstat_evalsha"]["calls"] == 4 + 4 + 1 + 1


def test_a_batch_beyond_the_bound_of_a_script_is_one_answer(make):
    checker = make()
    requests = [ClaimRequest(KEYS.key(str(n))) for n in range(MAX_KEYS + 7)]
    decisions = checker.protocol.claim_many(requests)
    assert [decision.claim.key for decision in decisions] == [request.key for request in requests]
    assert checker.protocol.complete_many([Completion(decision.claim) for decision in decisions]) == [
        True
    ] * len(requests)


def test_an_unreadable_value_leaves_the_others_of_its_group_alone(make, client, prefix):
    checker = make()
    ran = []
    consumer = Registry().consumer("orders", checker=checker)(lambda message: ran.append(message.id))
    names = {n: checker.store.names.name(consumer.key_of(str(n)).hash) for n in range(300)}
    client.set(names[150], b"something else")
    client.hset(names[7], "a", "b")
    results = consumer.process_many([Message("orders", id=str(n)) for n in names])
    bad = {n for n, result in enumerate(results) if result.outcome is not Outcome.PROCESSED}
    assert bad == {7, 150}
    for n in bad:
        assert (results[n].outcome, type(results[n].error)) == (Outcome.UNAVAILABLE, StoreError)
        assert f"the value of key orders:default:{n} in Redis" in str(results[n].error)
        assert names[n].decode() in str(results[n].error)
    assert len(ran) == 298
    assert client.get(names[150]) == b"something else"
