"""What `doctor` finds in a Redis server's settings."""

import socket
import time

import pytest
import redis

from idempotent.admin import Level
from idempotent.checkers import MemoryChecker, RedisChecker
from idempotent.checkers.redis.findings import _version, redis_findings
from idempotent.errors import ConfigurationError, StoreUnavailableError
from tests.support.services.redis import PASSWORD

SAFE = (
    *("--appendonly", "yes", "--appendfsync", "always"),
    *("--maxmemory", "100mb", "--maxmemory-policy", "noeviction"),
)


def problems(findings, level=None):
    return [one for one in findings if one.level is not Level.OK and level in (None, one.level)]


def test_a_server_that_keeps_everything_has_no_problem(private_redis):
    findings = redis_findings(private_redis(*SAFE).url)
    assert findings
    assert not problems(findings)


@pytest.mark.parametrize(
    ("options", "level", "what"),
    [
        (("--maxmemory-policy", "allkeys-lru"), Level.ERROR, "allkeys-lru"),
        (("--maxmemory-policy", "volatile-ttl"), Level.ERROR, "volatile-ttl"),
        (("--maxmemory-policy", "allkeys-lru", "--maxmemory", "0"), Level.WARNING, "allkeys-lru"),
        (("--maxmemory", "0"), Level.WARNING, "maxmemory is not set"),
        (("--maxmemory", "1mb"), Level.WARNING, "are used"),
        (("--appendonly", "no"), Level.WARNING, "append-only file is off"),
        (("--appendfsync", "everysec"), Level.WARNING, "appendfsync is everysec"),
        (("--appendfsync", "no"), Level.WARNING, "appendfsync is no"),
        (("--replicaof", "127.0.0.1", "1"), Level.ERROR, "is a replica"),
    ],
)
def test_each_setting_that_loses_keys_is_found(private_redis, options, level, what):
    found = problems(redis_findings(private_redis(*SAFE, *options).url), level)
    assert any(what in one.what and one.hint for one in found), found


def test_a_server_that_hides_its_settings_is_judged_by_what_it_tells(private_redis):
    server = private_redis(*SAFE, "--rename-command", "CONFIG", "")
    findings = redis_findings(server.url)
    assert not problems(findings)
    assert any("does not show" in one.what for one in findings)


def test_replicas_are_told_after_the_client(private_redis):
    primary = private_redis(*SAFE)
    private_redis("--replicaof", "127.0.0.1", str(primary.port), "--masterauth", PASSWORD)
    with redis.Redis.from_url(primary.url) as client:
        deadline = time.monotonic() + 20
        while not client.info("replication")["connected_slaves"]:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert any("replicas" in one.what for one in problems(redis_findings(client)))
        client.config_set("min-replicas-to-write", 1)
        assert not problems(redis_findings(client))


@pytest.mark.parametrize(
    ("version", "level"),
    [
        ("6.0.16", Level.ERROR),
        ("6.2.0", Level.OK),
        ("7.4.1", Level.OK),
        ("10.0", Level.OK),
        ("x", Level.WARNING),
    ],
)
def test_versions_before_6_2_lack_what_the_scripts_use(version, level):
    assert _version({"redis_version": version}).level is level


def test_a_checker_and_a_decoding_client_are_looked_at_likewise(private_redis):
    server = private_redis(*SAFE)
    checker = RedisChecker(server.url)
    with redis.Redis.from_url(server.url, decode_responses=True) as client:
        assert checker.findings() == redis_findings(client) == redis_findings(server.url)
    checker.close()


def test_an_unreachable_server_is_an_error_that_says_which():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with pytest.raises(StoreUnavailableError, match=f"127.0.0.1:{port}"):
        redis_findings(f"redis://:geheim@127.0.0.1:{port}")


def test_another_checker_has_no_redis():
    with pytest.raises(ConfigurationError, match="MemoryChecker"):
        redis_findings(MemoryChecker())
