"""Which clients, addresses and prefixes a checker takes, and what it does to the application's own client."""

import pytest
import redis
import redis.asyncio

from idempotent.checkers import RedisChecker
from idempotent.claims import ClaimRequest, Verdict
from idempotent.errors import ConfigurationError, StoreUnavailableError
from tests.checkers.redis.stored import KEYS, LosesAnswers, run_python


def test_a_client_that_retries_by_itself_is_not_made_to_retry_more(make, redis_url):
    retry = redis.retry.Retry(redis.backoff.NoBackoff(), 1)
    with LosesAnswers.from_url(redis_url, retry=retry) as client:
        checker = make(client)
        checker.protocol.claim(ClaimRequest(KEYS.key("warm")))
        client.lose = 1
        with pytest.raises(StoreUnavailableError):
            checker.protocol.claim(ClaimRequest(KEYS.key("7")))


def test_connections_that_the_server_closed_are_replaced(make, client, redis_url):
    checker = make(redis_url)
    claim = checker.protocol.claim(ClaimRequest(KEYS.key("7"))).claim
    # Of this database alone: the server is everybody's, and the others are in the middle of their tests.
    me, db = str(client.client_id()), str(client.connection_pool.connection_kwargs["db"])
    others = [one["id"] for one in client.client_list() if one["db"] == db and one["id"] != me]
    assert sum(client.client_kill_filter(_id=number) for number in others)
    assert checker.protocol.complete(claim)


def test_a_client_that_decodes_answers_will_do(make, redis_url):
    with redis.Redis.from_url(redis_url, decode_responses=True) as client:
        checker = make(client)
        key = KEYS.key("é")
        claim = checker.protocol.claim(ClaimRequest(key, fingerprint=b"\xff" * 20)).claim
        checker.protocol.complete(claim, b"\xfe\xff")
        again = checker.protocol.claim(ClaimRequest(key))
        assert (again.result, again.fingerprint) == (b"\xfe\xff", b"\xff" * 20)
        (record,) = checker.admin().list(everything())
        assert (record.text, record.result) == ("orders.paid:billing:é", b"\xfe\xff")


def everything():
    from idempotent.admin import KeyFilter

    return KeyFilter()


@pytest.mark.parametrize("kind", [redis.asyncio.Redis, object, dict])
def test_what_is_no_synchronous_client_is_refused(kind):
    with pytest.raises(ConfigurationError, match=r"redis\.Redis"):
        RedisChecker(kind())


def test_a_pipeline_is_refused(client):
    with pytest.raises(ConfigurationError, match="Pipeline"):
        RedisChecker(client.pipeline())


@pytest.mark.parametrize(
    "url",
    [
        "http://:geheim@host",
        "redis://:ge/heim@host",
        "redis://:geheim@host:port",
        "redis://:geheim@host/0?nonsense=1",
        "redis://:geheim@host?db=x",
    ],
)
def test_a_wrong_url_is_refused_without_its_password(url):
    with pytest.raises(ConfigurationError) as caught:
        RedisChecker(url)
    assert "redis://user:***@host:6379/0" in str(caught.value)
    assert "heim" not in str(caught.value)


@pytest.mark.parametrize("prefix", ["{app}:", "a}", "a\nb"])
def test_a_prefix_that_would_break_names_is_refused(prefix):
    with pytest.raises(ConfigurationError, match="prefix"):
        RedisChecker("redis://localhost", prefix=prefix)


def test_two_prefixes_share_nothing(client, prefix):
    one, two = (RedisChecker(client, prefix=f"{prefix}{n}:") for n in range(2))
    assert one.protocol.claim(ClaimRequest(KEYS.key("7"))).verdict is Verdict.ACQUIRED
    assert two.protocol.claim(ClaimRequest(KEYS.key("7"))).verdict is Verdict.ACQUIRED
    assert len(list(one.admin().list(everything()))) == 1
    one.close()
    two.close()


def test_closing_leaves_the_application_its_client(make, client):
    checker = make()
    checker.protocol.claim(ClaimRequest(KEYS.key("7")))
    checker.close()
    assert client.ping()


def test_a_forked_process_opens_connections_of_its_own(redis_url, prefix):
    script = """
        import os, sys
        from idempotent.checkers import RedisChecker
        from idempotent.claims import ClaimRequest
        from idempotent.keys import KeySpace
        keys = KeySpace("orders.paid", "billing")
        checker = RedisChecker(sys.argv[1], prefix=sys.argv[2])
        claim = lambda n: checker.protocol.claim(ClaimRequest(keys.key(str(n)))).verdict.name
        claim("warm")
        child = os.fork()
        verdicts = {claim(n) for n in range(1000 if child else 2000)}
        verdicts = sorted(claim(n) for n in ("mine", "yours"))
        if child:
            assert os.waitpid(child, 0)[1] == 0
            print("well")
        os._exit(0) if not child else None
    """
    assert run_python(script, redis_url, prefix) == "well"
