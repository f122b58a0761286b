"""Every fault of a server becomes one error that says where, what, and what to do."""

import socket
import threading
import time

import pytest
import redis

from idempotent.checkers import RedisChecker
from idempotent.claims import ClaimRequest
from idempotent.errors import StoreBusyError, StoreError, StoreUnavailableError
from idempotent.keys import KeySpace

KEY = KeySpace("orders.paid", "billing").key("7")


def failing(url_or_client, error, **options):
    """The message of the error, which may not show a password in any of its causes' words."""
    checker = RedisChecker(url_or_client, **options)
    try:
        with pytest.raises(error) as caught:
            checker.protocol.claim(ClaimRequest(KEY))
    finally:
        checker.close()
    assert isinstance(caught.value.__cause__, (redis.RedisError, redis.exceptions.RedisClusterException))
    assert "geheim" not in str(caught.value)
    return str(caught.value)


def closed_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def test_nobody_there(redis_url):
    port = closed_port()
    said = failing(f"redis://me:geheim@127.0.0.1:{port}/3", StoreUnavailableError)
    assert f"127.0.0.1:{port}/3 as me:***" in said
    assert "Check that the server runs" in said


def test_a_wrong_password(private_redis):
    server = private_redis()
    said = failing(f"redis://:geheim@127.0.0.1:{server.port}/0", StoreUnavailableError)
    assert f"127.0.0.1:{server.port}/0 as default:***" in said
    assert "Check the user and the password" in said


def test_no_password(private_redis):
    server = private_redis()
    said = failing(f"redis://127.0.0.1:{server.port}/0", StoreUnavailableError)
    assert "Check the user and the password" in said


def test_a_server_that_does_not_answer(private_redis):
    server = private_redis()
    server.pause()
    try:
        began = time.monotonic()
        failing(f"{server.url}?socket_timeout=0.2", StoreUnavailableError)
        assert time.monotonic() - began < 5
    finally:
        server.resume()


def test_a_client_made_from_a_url_does_not_wait_for_ever():
    checker = RedisChecker("redis://localhost")
    assert 0 < checker.store.client.get_connection_kwargs()["socket_timeout"] <= 10
    checker.close()


def test_a_replica_is_busy_until_the_failover_ends(private_redis):
    server = private_redis("--replicaof", "127.0.0.1", str(closed_port()))
    said = failing(server.url, StoreBusyError)
    assert "replica" in said
    assert "connect to the primary" in said


def test_a_server_busy_with_a_script_is_busy(private_redis):
    server = private_redis("--lua-time-limit", "50")
    with redis.Redis.from_url(server.url) as other, redis.Redis.from_url(server.url) as killer:

        def spin():
            with pytest.raises(redis.ResponseError, match="kill"):
                other.eval("while true do end", 0)

        thread = threading.Thread(target=spin)
        thread.start()
        time.sleep(0.3)
        try:
            assert "script" in failing(server.url, StoreBusyError)
        finally:
            killer.script_kill()
            thread.join()


def test_a_full_server_refuses_and_keeps_what_it_has(private_redis):
    server = private_redis("--maxmemory", "1", "--maxmemory-policy", "noeviction")
    said = failing(server.url, StoreError)
    assert "maxmemory" in said


def test_a_user_without_the_permission(private_redis):
    server = private_redis()
    with redis.Redis.from_url(server.url) as client:
        client.execute_command("ACL", "SETUSER", "reader", "on", ">geheim", "~*", "+get")
    said = failing(f"redis://reader:geheim@127.0.0.1:{server.port}/0", StoreError)
    assert "+evalsha" in said


def test_a_node_of_a_cluster_wants_another_client(private_redis):
    server = private_redis("--cluster-enabled", "yes")
    with redis.Redis.from_url(server.url) as node:
        node.execute_command("CLUSTER ADDSLOTSRANGE", 0, 16383)
        deadline = time.monotonic() + 20
        while node.execute_command("CLUSTER INFO")["cluster_state"] != "ok":
            assert time.monotonic() < deadline
            time.sleep(0.05)
    checker = RedisChecker(server.url)
    with pytest.raises(StoreError, match=r"Pass redis\.RedisCluster"):
        checker.protocol.claim_many([ClaimRequest(KeySpace("a", "b").key(str(n))) for n in range(50)])
    checker.close()


def test_a_cluster_without_its_slots_is_busy(private_redis):
    server = private_redis("--cluster-enabled", "yes")
    assert "cluster" in failing(server.url, StoreBusyError)


@pytest.mark.parametrize("work", ["claim_many", "renew", "release", "admin", "stats"])
def test_every_way_to_the_server_ends_in_an_error_of_ours(work):
    checker = RedisChecker(f"redis://127.0.0.1:{closed_port()}/0")
    claim_of = KeySpace("a", "b").key
    from idempotent.admin import KeyFilter
    from idempotent.claims import Claim

    calls = {
        "claim_many": lambda: checker.protocol.claim_many(
            [ClaimRequest(claim_of("1")), ClaimRequest(claim_of("2"))]
        ),
        "renew": lambda: checker._renew_many([Claim(KEY, 1, b"o" * 16)]),
        "release": lambda: checker.protocol.release(Claim(KEY, 1, b"o" * 16)),
        "admin": lambda: list(checker.admin().list(KeyFilter())),
        "stats": lambda: checker.admin().stats(),
    }
    with pytest.raises(StoreUnavailableError):
        calls[work]()
    checker.close()
