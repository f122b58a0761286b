"""The checker over a Redis cluster."""

import time

import pytest
import redis
import redis.asyncio

from idempotent.claims import ClaimRequest, Completion, Failure, KeyStatus, Verdict
from idempotent.stores.redis.scripts import BUCKETS, RedisStore, bucket_of
from tests.checkers.redis.stored import KEYS


def test_in_a_cluster_a_call_takes_keys_of_one_bucket(client):
    class Cluster(RedisStore):
        def __init__(self):
            super().__init__(client, "app:")
            self._cluster = True

    store = Cluster()
    names = [store.names.name(KEYS.key(str(n)).hash) for n in range(2000)]
    groups = store.together(names)
    assert sorted(at for group in groups for at in group) == list(range(2000))
    assert all(group == sorted(group) for group in groups)
    buckets = [{bucket_of(names[at], len(b"app:")) for at in group} for group in groups]
    assert all(len(bucket) == 1 for bucket in buckets)
    assert len(groups) == BUCKETS
    slots = [{redis.crc.key_slot(names[at]) for at in group} for group in groups]
    assert all(len(slot) == 1 for slot in slots)
    assert redis.crc.key_slot(names[0]) == redis.crc.key_slot(names[0] + b":f")


@pytest.fixture
def cluster(private_redis):
    """A cluster of one node: it refuses keys of two slots in one call all the same."""
    server = private_redis("--cluster-enabled", "yes")
    with redis.Redis.from_url(server.url) as node:
        node.execute_command("CLUSTER ADDSLOTSRANGE", 0, 16383)
        deadline = time.monotonic() + 20
        while node.execute_command("CLUSTER INFO")["cluster_state"] != "ok":
            assert time.monotonic() < deadline
            time.sleep(0.05)
    client = redis.RedisCluster.from_url(server.url)
    yield client
    client.close()


def test_a_cluster_takes_batches_failures_and_decisions(make, cluster):
    checker = make(cluster)
    requests = [ClaimRequest(KEYS.key(str(n)), owner=b"o" * 16) for n in range(200)]
    decisions = checker.protocol.claim_many(requests)
    assert [decision.claim.key for decision in decisions] == [request.key for request in requests]
    claims = [decision.claim for decision in decisions]
    released = checker.protocol.release_many([(claim, Failure("boom", 1)) for claim in claims[:20]])
    assert all(one.dead for one in released)
    assert checker._renew_many(claims) == [False] * 20 + [True] * 180
    assert checker.protocol.complete_many([Completion(claim, b"1") for claim in claims[100:]]) == [True] * 100
    again = checker.protocol.claim_many([ClaimRequest(request.key) for request in requests])
    assert [decision.verdict for decision in again] == (
        [Verdict.DEAD] * 20 + [Verdict.IN_PROGRESS] * 80 + [Verdict.DUPLICATE] * 100
    )
    assert again[0].reason == "boom"
    admin = checker.admin()
    assert {(stats.status, stats.count) for stats in admin.stats()} == {
        (KeyStatus.DEAD, 20),
        (KeyStatus.IN_PROGRESS, 80),
        (KeyStatus.DONE, 100),
    }
    assert admin.reopen(admin.get(claims[0].key))
    assert checker.protocol.claim(ClaimRequest(claims[0].key)).verdict is Verdict.ACQUIRED
