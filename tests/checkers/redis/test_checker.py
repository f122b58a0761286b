"""What is Redis's own: layout, time to live, scripts, clients, cluster. The rest is the contract's."""

import os
import subprocess
import sys
import textwrap
import time

import pytest
import redis
import redis.asyncio

from idempotent.checkers import RedisChecker
from idempotent.checkers.redis.layout import Flag, key_record, stored_failure
from idempotent.claims import Claim, ClaimRequest, Completion, Failure, KeyStatus, Lapsed, Verdict, new_owner
from idempotent.errors import ConfigurationError, StoreError, StoreUnavailableError
from idempotent.keys import KeySpace
from idempotent.stores.redis.names import BUCKETS, KeyNames, bucket_of
from idempotent.stores.redis.scripts import MAX_KEYS, RedisStore

KEYS = KeySpace("orders.paid", "billing")
HOUR_S = 3600.0


def name_of(checker, key):
    return checker.store.names.name(key.hash)


def server_time_us(client):
    seconds, microseconds = client.time()
    return seconds * 1_000_000 + microseconds


class LosesAnswers(redis.Redis):
    """The server acts on the next `lose` commands; their answers never arrive."""

    lose = 0

    def execute_command(self, *args, **options):
        answer = super().execute_command(*args, **options)
        if self.lose:
            self.lose -= 1
            raise redis.ConnectionError("connection lost")
        return answer


@pytest.fixture
def loses_answers(redis_url):
    with LosesAnswers.from_url(redis_url, retry=None) as client:
        yield client


def made_with_scripts(make, client, **options):
    """A checker whose server has the scripts: an answer is lost, and not the server's wish for their text too."""
    checker = make(client, **options)
    for script in (checker._claims, checker._completes, checker._releases):
        client.script_load(script.source)
    return checker


# Layout


def stored_key(value):
    return key_record(b"", value, None, now_us=0)


def test_what_python_reads_is_what_lua_wrote(make, client):
    checker = make(lease_s=20, retention_s=HOUR_S)
    key = KEYS.key("7")
    before = server_time_us(client)
    claim = checker.desk.claim(ClaimRequest(key, fingerprint=b"f" * 20)).claim
    stored = stored_key(client.get(name_of(checker, key)))
    assert stored.status is KeyStatus.IN_PROGRESS
    assert stored.text == "orders.paid:billing:7"
    assert before <= stored.fence == claim.fence == stored.update_at_us <= server_time_us(client)
    assert stored.lease_until_us == stored.fence + 20_000_000
    assert stored.expires_at_us == stored.fence + 3_600_000_000
    assert stored.result is None

    checker.desk.complete(claim, b'{"paid":true}')
    done = stored_key(client.get(name_of(checker, key)))
    assert (done.status, done.result, done.lease_until_us) == (KeyStatus.DONE, b'{"paid":true}', None)
    assert (done.text, done.fence, done.expires_at_us) == (stored.text, stored.fence, stored.expires_at_us)
    assert done.update_at_us > stored.update_at_us


def test_every_status_and_flag_in_lua_is_that_of_python():
    from importlib.resources import files

    text = (files("idempotent.checkers.redis") / "layout.lua").read_text()
    assert (
        f"local IN_PROGRESS_GROUP, IN_PROGRESS_PARK, DONE, DEAD = {KeyStatus.IN_PROGRESS_GROUP:d}, "
        f"{KeyStatus.IN_PROGRESS_PARK:d}, {KeyStatus.DONE:d}, {KeyStatus.DEAD:d}\n" in text
    )
    flags = ", ".join(flag.name for flag in Flag if flag.name)
    assert f"local {flags} = {', '.join(str(flag.value) for flag in Flag)}\n" in text


def test_a_result_replaces_an_earlier_one_of_the_same_owner(make, client):
    checker = make()
    claim = checker.desk.claim(ClaimRequest(KEYS.key("7"), fingerprint=b"f" * 20)).claim
    checker.desk.complete(claim, b"a long first result")
    checker.desk.complete(claim, b"")
    checker.desk.complete(claim)
    again = checker.desk.claim(ClaimRequest(KEYS.key("7")))
    assert (again.verdict, again.result, again.fingerprint) == (Verdict.DUPLICATE, b"", b"f" * 20)


def test_a_value_of_another_layout_is_an_error_not_a_verdict(make, client):
    checker = make()
    client.set(name_of(checker, KEYS.key("7")), b"\x09" + bytes(80))
    with pytest.raises(StoreError, match="layout"):
        checker.desk.claim(ClaimRequest(KEYS.key("7")))


def test_names_lead_back_to_hashes_and_nothing_else_does():
    names = KeyNames("app:")
    key = KEYS.key("7")
    name = names.name(key.hash)
    assert name.startswith(b"app:{")
    assert name.endswith(key.token.encode())
    assert names.hash_of(name) == key.hash
    assert names.hash_of(name + b":f") is None
    assert names.hash_of(name.replace(b"app:", b"api:")) is None


def test_an_error_is_kept_as_one_line_of_a_thousand_characters(make, client):
    checker = make()
    claim = checker.desk.claim(ClaimRequest(KEYS.key("7"))).claim
    checker.desk.release(claim, Failure("a\x00b\nc\ud800" + "é" * 2000, max_attempts=9))
    attempts, error = stored_failure(client.get(name_of(checker, KEYS.key("7")) + b":f"))
    assert attempts == 1
    assert error == "a b c " + "é" * 994


# Time to live


def ttl_s(client, name):
    return client.pttl(name) / 1000


def test_a_key_lives_until_its_expiry_which_completing_does_not_move(make, client):
    checker = make(lease_s=1, retention_s=HOUR_S)
    claim = checker.desk.claim(ClaimRequest(KEYS.key("7"))).claim
    name = name_of(checker, claim.key)
    expires_at_us = claim.fence + 3_600_000_000
    assert expires_at_us <= client.pexpiretime(name) * 1000 <= expires_at_us + 2000
    time.sleep(0.05)
    checker.desk.complete(claim)
    assert expires_at_us <= client.pexpiretime(name) * 1000 <= expires_at_us + 2000
    checker.desk.complete(claim, b"result")  # by the other way through the script
    assert expires_at_us <= client.pexpiretime(name) * 1000 < expires_at_us + 2000


def test_keys_completed_together_keep_their_own_times(make, client):
    early, late = make(lease_s=30, retention_s=HOUR_S), make(lease_s=30, retention_s=2 * HOUR_S)
    endless = make(lease_s=None, retention_s=3 * HOUR_S)
    owner = new_owner()
    claims = [
        checker.desk.claim(ClaimRequest(KEYS.key(str(n)), owner)).claim
        for n, checker in enumerate((early, late, early, endless))
    ]
    names = [name_of(early, claim.key) for claim in claims]
    before = [stored_key(client.get(name)) for name in names]
    assert early.desk.complete_many([Completion(claim) for claim in claims]) == [True] * 4
    after = [stored_key(client.get(name)) for name in names]
    assert [key.expires_at_us for key in after] == [key.expires_at_us for key in before]
    assert [key.status for key in after] == [KeyStatus.DONE] * 4


def test_a_key_outlives_its_lease_though_its_retention_is_shorter(make, client):
    checker = make(lease_s=60, retention_s=2)
    claim = checker.desk.claim(ClaimRequest(KEYS.key("7"))).claim
    name = name_of(checker, claim.key)
    assert 50 < ttl_s(client, name) <= 60.1
    client.pexpire(name, 5000)
    assert checker._renew_many([claim]) == [True]
    assert 50 < ttl_s(client, name) <= 60.1
    checker.desk.complete(claim)
    assert ttl_s(client, name) <= 2


@pytest.mark.parametrize(
    ("status", "lease_s"), [(KeyStatus.IN_PROGRESS_PARK, 10.0), (KeyStatus.IN_PROGRESS, None)]
)
def test_what_must_not_be_forgotten_has_no_time_to_live_until_it_is_final(make, client, status, lease_s):
    checker = make(lease_s=lease_s, retention_s=HOUR_S)
    claim = checker.desk.claim(ClaimRequest(KEYS.key("7"), status=status)).claim
    name = name_of(checker, claim.key)
    assert client.pttl(name) == -1
    assert checker._renew_many([claim]) == [True]
    assert client.pttl(name) == -1
    checker.desk.complete(claim)
    assert HOUR_S - 10 < ttl_s(client, name) <= HOUR_S + 0.01  # Redis rounds up


def test_a_parked_key_and_its_reason_stay_for_a_person(make, client):
    checker = make(lease_s=0.05, retention_s=HOUR_S)
    park = ClaimRequest(KEYS.key("7"), status=KeyStatus.IN_PROGRESS_PARK, on_lapsed=Lapsed.PARK)
    claim = checker._claim(park).claim  # nobody renews it
    time.sleep(0.1)
    other = make(lease_s=0.05, retention_s=HOUR_S)
    assert other.desk.claim(ClaimRequest(KEYS.key("7"), on_lapsed=Lapsed.PARK)).verdict is Verdict.DEAD
    name = name_of(checker, claim.key)
    assert HOUR_S - 10 < ttl_s(client, name) <= HOUR_S + 0.01  # Redis rounds up
    assert ttl_s(client, name) <= ttl_s(client, name + b":f") + 0.01
    assert "effect unknown" in other.desk.claim(ClaimRequest(KEYS.key("7"))).reason


def test_a_key_that_is_final_after_its_expiry_is_kept_once_more(make, client):
    checker = make(lease_s=HOUR_S, retention_s=0.05)
    claim = checker.desk.claim(ClaimRequest(KEYS.key("7"), status=KeyStatus.IN_PROGRESS_PARK)).claim
    time.sleep(0.1)
    checker.desk.complete(claim)
    assert 0 < client.pttl(name_of(checker, claim.key)) <= 51


def test_failures_are_forgotten_after_the_retention(make, client):
    checker = make(retention_s=HOUR_S)
    claim = checker.desk.claim(ClaimRequest(KEYS.key("7"))).claim
    name = name_of(checker, claim.key)
    checker.desk.release(claim, Failure("boom", max_attempts=5))
    assert not client.exists(name)
    assert HOUR_S - 10 < ttl_s(client, name + b":f") <= HOUR_S + 0.01


def test_expired_keys_go_by_themselves(make, client):
    checker = make(lease_s=0.05, retention_s=0.05)
    checker.desk.complete(checker.desk.claim(ClaimRequest(KEYS.key("7"))).claim)
    time.sleep(0.1)
    assert checker.garbage_collect() == 0
    assert not client.exists(name_of(checker, KEYS.key("7")))


# Clock


def test_the_clock_of_the_client_does_not_matter(make, redis_url, prefix):
    """A process whose clock is a day ahead neither takes over a live lease nor dates a key."""
    ours = make(lease_s=30).desk.claim(ClaimRequest(KEYS.key("7"))).claim
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
        print(checker.desk.claim(ClaimRequest(keys.key("7"))).verdict.name)
        print(checker.desk.claim(ClaimRequest(keys.key("8"))).claim.fence)
    """
    said = run_python(script, redis_url, prefix).split()
    assert said[0] == "IN_PROGRESS"
    assert 0 <= int(said[1]) - ours.fence < 60_000_000


# Scripts


def test_a_flushed_script_cache_costs_nothing_but_a_round_trip(make, client):
    checker = make()
    key = KEYS.key("7")
    checker.desk.claim(ClaimRequest(KEYS.key("warm")))
    client.script_flush()
    claim = checker.desk.claim(ClaimRequest(key)).claim
    client.script_flush()
    assert checker._renew_many([claim]) == [True]
    client.script_flush()
    assert checker.desk.complete(claim)
    client.script_flush()
    assert [d.verdict for d in checker.desk.claim_many([ClaimRequest(key), ClaimRequest(KEYS.key("8"))])] == [
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
            many = checker.desk.claim_many([ClaimRequest(KEYS.key(f"{_}-{n}")) for n in range(500)])
            checker.desk.complete_many([Completion(decision.claim) for decision in many])
            checker.desk.complete(checker.desk.claim(ClaimRequest(KEYS.key(f"{_}"))).claim)
        assert client.info("commandstats")["cmdstat_evalsha"]["calls"] == 4 + 4 + 1 + 1


def test_a_batch_beyond_the_bound_of_a_script_is_one_answer(make):
    checker = make()
    requests = [ClaimRequest(KEYS.key(str(n))) for n in range(MAX_KEYS + 7)]
    decisions = checker.desk.claim_many(requests)
    assert [decision.claim.key for decision in decisions] == [request.key for request in requests]
    assert checker.desk.complete_many([Completion(decision.claim) for decision in decisions]) == [True] * len(
        requests
    )


# Lost answers


def test_a_claim_whose_answer_was_lost_is_still_a_claim(make, loses_answers):
    checker = made_with_scripts(make, loses_answers)
    loses_answers.lose = 1
    assert checker.desk.claim(ClaimRequest(KEYS.key("7"))).verdict is Verdict.ACQUIRED


def test_a_take_over_whose_answer_was_lost_is_still_known_as_one(make, loses_answers):
    checker = made_with_scripts(make, loses_answers, lease_s=0.05)
    checker._claim(ClaimRequest(KEYS.key("7")))
    time.sleep(0.1)
    loses_answers.lose = 1
    decision = checker.desk.claim(ClaimRequest(KEYS.key("7"), max_attempts=5))
    assert (decision.verdict, decision.lapsed, decision.alone) == (Verdict.ACQUIRED, True, True)
    assert checker.admin().get(KEYS.key("7")).attempts == 1


def test_a_lapse_is_counted_once_however_often_its_new_owner_asks(make):
    checker = make(lease_s=0.05)
    checker._claim(ClaimRequest(KEYS.key("7")))
    time.sleep(0.1)
    request = ClaimRequest(KEYS.key("7"), max_attempts=5)
    assert checker.desk.claim(request).alone
    again = checker.desk.claim(request)
    assert (again.verdict, again.alone) == (Verdict.ACQUIRED, False)
    assert checker.admin().get(KEYS.key("7")).attempts == 1


def test_a_completion_whose_answer_was_lost_counts(make, loses_answers):
    checker = made_with_scripts(make, loses_answers)
    claim = checker.desk.claim(ClaimRequest(KEYS.key("7"))).claim
    loses_answers.lose = 1
    assert checker.desk.complete(claim, b"1")


@pytest.mark.parametrize("keep_claim", [False, True])
@pytest.mark.parametrize("max_attempts", [1, 5])
def test_a_failure_whose_answer_was_lost_is_counted_once(make, loses_answers, keep_claim, max_attempts):
    checker = made_with_scripts(make, loses_answers)
    claim = checker.desk.claim(ClaimRequest(KEYS.key("7"))).claim
    loses_answers.lose = 1
    released = checker.desk.release(claim, Failure("boom", max_attempts, keep_claim=keep_claim))
    assert (released.owned, released.attempts, released.dead) == (True, 1, max_attempts == 1)


def test_two_failures_of_one_claim_count_twice(make):
    checker = make()
    claim = checker.desk.claim(ClaimRequest(KEYS.key("7"))).claim
    assert checker.desk.release(claim, Failure("lapse", 5, keep_claim=True)).attempts == 1
    assert checker.desk.release(claim, Failure("boom", 5)).attempts == 2


def test_an_answer_lost_twice_is_an_error(make, loses_answers):
    checker = made_with_scripts(make, loses_answers)
    loses_answers.lose = 2
    with pytest.raises(StoreUnavailableError, match="connection lost"):
        checker.desk.claim(ClaimRequest(KEYS.key("7")))


def test_a_client_that_retries_by_itself_is_not_made_to_retry_more(make, redis_url):
    retry = redis.retry.Retry(redis.backoff.NoBackoff(), 1)
    with LosesAnswers.from_url(redis_url, retry=retry) as client:
        checker = make(client)
        checker.desk.claim(ClaimRequest(KEYS.key("warm")))
        client.lose = 1
        with pytest.raises(StoreUnavailableError):
            checker.desk.claim(ClaimRequest(KEYS.key("7")))


def test_connections_that_the_server_closed_are_replaced(make, client, redis_url):
    checker = make(redis_url)
    claim = checker.desk.claim(ClaimRequest(KEYS.key("7"))).claim
    # Of this database alone: the server is everybody's, and the others are in the middle of their tests.
    me, db = str(client.client_id()), str(client.connection_pool.connection_kwargs["db"])
    others = [one["id"] for one in client.client_list() if one["db"] == db and one["id"] != me]
    assert sum(client.client_kill_filter(_id=number) for number in others)
    assert checker.desk.complete(claim)


# Clients


def test_a_client_that_decodes_answers_will_do(make, redis_url):
    with redis.Redis.from_url(redis_url, decode_responses=True) as client:
        checker = make(client)
        key = KEYS.key("é")
        claim = checker.desk.claim(ClaimRequest(key, fingerprint=b"\xff" * 20)).claim
        checker.desk.complete(claim, b"\xfe\xff")
        again = checker.desk.claim(ClaimRequest(key))
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
    assert "redis://user:password@host:6379/0" in str(caught.value)
    assert "heim" not in str(caught.value)


@pytest.mark.parametrize("prefix", ["{app}:", "a}", "a\nb"])
def test_a_prefix_that_would_break_names_is_refused(prefix):
    with pytest.raises(ConfigurationError, match="prefix"):
        RedisChecker("redis://localhost", prefix=prefix)


def test_two_prefixes_share_nothing(client, prefix):
    one, two = (RedisChecker(client, prefix=f"{prefix}{n}:") for n in range(2))
    assert one.desk.claim(ClaimRequest(KEYS.key("7"))).verdict is Verdict.ACQUIRED
    assert two.desk.claim(ClaimRequest(KEYS.key("7"))).verdict is Verdict.ACQUIRED
    assert len(list(one.admin().list(everything()))) == 1
    one.close()
    two.close()


def test_closing_leaves_the_application_its_client(make, client):
    checker = make()
    checker.desk.claim(ClaimRequest(KEYS.key("7")))
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
        claim = lambda n: checker.desk.claim(ClaimRequest(keys.key(str(n)))).verdict.name
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


def run_python(script, *arguments):
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(script), *arguments],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


# Cluster


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
    decisions = checker.desk.claim_many(requests)
    assert [decision.claim.key for decision in decisions] == [request.key for request in requests]
    claims = [decision.claim for decision in decisions]
    released = checker.desk.release_many([(claim, Failure("boom", 1)) for claim in claims[:20]])
    assert all(one.dead for one in released)
    assert checker._renew_many(claims) == [False] * 20 + [True] * 180
    assert checker.desk.complete_many([Completion(claim, b"1") for claim in claims[100:]]) == [True] * 100
    again = checker.desk.claim_many([ClaimRequest(request.key) for request in requests])
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
    assert checker.desk.claim(ClaimRequest(claims[0].key)).verdict is Verdict.ACQUIRED


# Ownership that only the stored bytes can tell


def test_an_owner_is_compared_as_bytes(make):
    checker = make()
    owner = b"\x00\xff'\r\n\\%s[[=]]{}0"
    claim = checker.desk.claim(ClaimRequest(KEYS.key("7"), owner=owner)).claim
    assert not checker.desk.complete(Claim(claim.key, claim.fence, owner[:-1] + b"1"))
    assert checker.desk.complete(claim)
