"""The connection is cut when the server has acted on the last word, or before, or the word arrives too late."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from urllib.parse import urlsplit

import pytest
from sqlalchemy import make_url

from idempotent import Message, Outcome
from idempotent.claims import KeyStatus
from idempotent.errors import CommitUnknownError, StoreUnavailableError
from idempotent.observe import Event, counters
from idempotent.outcomes import Action
from idempotent.testing.proxy import Loss, Proxy
from tests.guarantees.crash.child import SUBJECT
from tests.guarantees.crash.scene import Scene, deliver, deliver_until_settled

# A file has no connection to cut; test_killed.py kills before and after its COMMIT.
LEASED = pytest.mark.parametrize("shared_store", ["mysql", "postgres", "redis"], indirect=True)
TRANSACTIONAL = pytest.mark.parametrize("sql_store", ["mysql", "postgres"], indirect=True)

ENDED_WHEN_IDLE = {
    # MariaDB reads the first comment, MySQL the second.
    "mysql": {
        "init_command": "SET SESSION /*M! idle_transaction_timeout = 3 */ /*!80000 wait_timeout = 3 */"
    },
    "postgres": {"options": "-c idle_in_transaction_session_timeout=3s"},
}
LONG_S = 60.0  # a lease that does not end while a test runs


@pytest.fixture
def proxy(request: pytest.FixtureRequest) -> Iterator[Proxy]:
    """In front of the scene's server."""
    wanted = "leased" if "leased" in request.fixturenames else "transactional"
    scene: Scene = request.getfixturevalue(wanted)
    target = urlsplit(scene.store.url)
    proxy = Proxy(target.hostname or "", target.port or 0)
    yield proxy
    proxy.close()


def completing(scene: Scene) -> bytes:
    """What is in the packet that completes a key."""
    if scene.job.transactional:
        return b"COMMIT"
    if scene.store.kind == "redis":
        return b"EVALSHA"
    return f"SET expires_at = CASE WHEN status = {KeyStatus.DEAD:d}".encode()


class Behind:
    """A consumer behind the proxy that has consumed before: connections are open, scripts are loaded."""

    def __init__(self, scene: Scene, proxy: Proxy, **session: str) -> None:
        self._proxy = proxy
        self._packet = completing(scene)
        self._plans: list[tuple[Loss, bool]] = []
        store = scene.through(proxy.port)
        if session:
            url = make_url(store.url).update_query_dict(session)
            store = replace(store, url=url.render_as_string(hide_password=False))
        self.consumer = scene.consumer(store=store, lease_s=LONG_S, during=self._after_the_effect)
        assert deliver(self.consumer, "warm").outcome is Outcome.PROCESSED

    def lose_completion(self, loss: Loss = Loss.ANSWER, *, then_refuse: bool = False) -> None:
        """Of the next message."""
        self._plans.append((loss, then_refuse))

    def _after_the_effect(self) -> None:
        if self._plans:
            loss, then_refuse = self._plans.pop()
            self._proxy.lose(self._packet, loss, then_refuse=then_refuse)


def not_recorded(consumer) -> int:
    return counters.snapshot().get((consumer.name, Event.COMPLETION_NOT_RECORDED), 0)


def assert_held_without_an_attempt(scene: Scene, result) -> None:
    assert (result.outcome, result.action) == (Outcome.UNAVAILABLE, Action.HOLD)
    assert all(record.attempts == 0 for record in scene.keys().values())


# The answer is lost, and a new connection finds the key with our owner


@LEASED
def test_a_leased_completion_whose_answer_is_lost_is_found(leased, proxy):
    check_found(leased, proxy)


@TRANSACTIONAL
def test_a_commit_whose_answer_is_lost_is_found(transactional, proxy):
    check_found(transactional, proxy)


def check_found(scene: Scene, proxy: Proxy) -> None:
    behind = Behind(scene, proxy)
    consumer = behind.consumer
    before = not_recorded(consumer)
    behind.lose_completion()
    assert deliver(consumer).outcome is Outcome.PROCESSED
    assert proxy.cut_off.is_set()
    assert not_recorded(consumer) == before
    assert scene.key().status is KeyStatus.DONE
    assert scene.effects() == {"warm": 1, "1": 1}
    assert deliver(consumer).outcome is Outcome.DUPLICATE


@LEASED
def test_a_leased_completion_that_never_arrived_is_sent_again(leased, proxy):
    behind = Behind(leased, proxy)
    consumer = behind.consumer
    behind.lose_completion(Loss.QUESTION)
    assert deliver(consumer).outcome is Outcome.PROCESSED
    assert proxy.cut_off.is_set()
    assert leased.key().status is KeyStatus.DONE
    assert leased.effects() == {"warm": 1, "1": 1}


@LEASED
def test_a_claim_whose_answer_is_lost_is_found_by_its_owner(leased, proxy):
    consumer = Behind(leased, proxy).consumer
    claiming = b"EVALSHA" if leased.store.kind == "redis" else b"INSERT "
    proxy.lose(claiming)
    assert deliver(consumer).outcome is Outcome.PROCESSED
    assert proxy.cut_off.is_set()
    assert leased.effects() == {"warm": 1, "1": 1}


@pytest.mark.parametrize("shared_store", ["mysql"], indirect=True)
def test_a_connection_that_dies_while_it_is_prepared_is_an_unreachable_store(leased, proxy):
    checker = leased.job.checker(leased.through(proxy.port))
    proxy.lose(b"SET AUTOCOMMIT = 1", Loss.QUESTION)
    with pytest.raises(StoreUnavailableError):
        checker.garbage_collect()
    assert proxy.cut_off.is_set()
    assert checker.garbage_collect() == 0


# Nothing proves it


@LEASED
@pytest.mark.parametrize("loss", [Loss.ANSWER, Loss.QUESTION])
def test_a_leased_completion_is_offered_again_when_the_store_is_back(leased, proxy, loss):
    behind = Behind(leased, proxy)
    consumer = behind.consumer
    before = not_recorded(consumer)
    behind.lose_completion(loss, then_refuse=True)
    result = deliver(consumer)
    assert proxy.cut_off.is_set()
    assert_held_without_an_attempt(leased, result)
    assert isinstance(result.error, StoreUnavailableError)
    assert not_recorded(consumer) == before + 1
    elsewhere = leased.consumer()
    arrived = loss is Loss.ANSWER
    assert deliver(elsewhere).outcome is (Outcome.DUPLICATE if arrived else Outcome.IN_PROGRESS)
    assert deliver(consumer).outcome is Outcome.IN_PROGRESS
    proxy.recover()
    assert deliver(consumer).outcome is Outcome.DUPLICATE
    assert deliver(elsewhere).outcome is Outcome.DUPLICATE
    assert leased.key().status is KeyStatus.DONE
    assert leased.effects() == {"warm": 1, "1": 1}


@TRANSACTIONAL
@pytest.mark.parametrize("loss", [Loss.ANSWER, Loss.QUESTION])
def test_a_commit_that_nothing_proves_is_decided_by_the_next_claim(transactional, proxy, loss):
    behind = Behind(transactional, proxy)
    consumer = behind.consumer
    behind.lose_completion(loss, then_refuse=True)
    result = deliver(consumer)
    assert proxy.cut_off.is_set()
    assert_held_without_an_attempt(transactional, result)
    assert isinstance(result.error, CommitUnknownError)
    assert deliver(consumer).outcome is Outcome.UNAVAILABLE
    proxy.recover()
    arrived = loss is Loss.ANSWER
    assert transactional.effects().get("1", 0) == (1 if arrived else 0)
    again = deliver_until_settled(consumer)
    assert again.outcome is (Outcome.DUPLICATE if arrived else Outcome.PROCESSED)
    assert transactional.effects() == {"warm": 1, "1": 1}


@pytest.mark.slow
@TRANSACTIONAL
def test_a_transaction_that_nobody_ends_is_ended_by_a_server_that_was_told_to(transactional, proxy):
    behind = Behind(transactional, proxy, **ENDED_WHEN_IDLE[transactional.store.kind])
    behind.lose_completion(Loss.LATE)
    result = deliver(behind.consumer)
    assert proxy.cut_off.is_set()
    assert_held_without_an_attempt(transactional, result)
    elsewhere = transactional.consumer(lock_timeout_s=1.0)
    assert deliver_until_settled(elsewhere).outcome is Outcome.PROCESSED
    proxy.deliver()
    assert deliver(elsewhere).outcome is Outcome.DUPLICATE
    assert transactional.effects() == {"warm": 1, "1": 1}


@TRANSACTIONAL
def test_a_commit_may_still_arrive_after_everybody_looked_in_vain(transactional, proxy):
    behind = Behind(transactional, proxy)
    consumer = behind.consumer
    behind.lose_completion(Loss.LATE)
    result = deliver(consumer)
    assert proxy.cut_off.is_set()
    assert_held_without_an_attempt(transactional, result)
    assert isinstance(result.error, CommitUnknownError)
    assert transactional.effects() == {"warm": 1}
    elsewhere = transactional.consumer(lock_timeout_s=1.0)
    waiting = deliver(elsewhere)
    assert (waiting.outcome, waiting.action) == (Outcome.IN_PROGRESS, Action.HOLD), (
        "the old transaction decides"
    )
    proxy.deliver()
    assert deliver_until_settled(elsewhere).outcome is Outcome.DUPLICATE
    assert deliver(consumer).outcome is Outcome.DUPLICATE
    assert transactional.effects() == {"warm": 1, "1": 1}


@TRANSACTIONAL
def test_a_group_whose_commit_answer_is_lost_is_found_whole(transactional, proxy):
    behind = Behind(transactional, proxy)
    consumer = behind.consumer
    behind.lose_completion()
    results = consumer.process_many([Message(SUBJECT, id=str(i)) for i in range(10)])
    assert proxy.cut_off.is_set()
    assert {result.outcome for result in results} == {Outcome.PROCESSED}
    assert transactional.effects() == {"warm": 1, **{str(i): 1 for i in range(10)}}
