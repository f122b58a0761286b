"""Ways in which a claim, a lease or an effect could get lost that no table of crashes lists."""

from __future__ import annotations

import asyncio

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from idempotent import Outcome
from idempotent.checkers import MemoryChecker, SqlChecker
from idempotent.claims import ClaimRequest, Decision, Failure, Verdict
from idempotent.observe import Event, counters
from idempotent.policy import ExceptionPolicy, Handling
from tests.guarantees.orders import ORDERS, Refusing, consumer_of, message, outcomes
from tests.support.hooks import answering
from tests.support.logs import events, logged


def test_what_this_process_knows_is_not_run_again_under_any_policy():
    checker = Refusing("1")
    ran = []
    consumer = consumer_of(checker, ran.append, on_store_error="process")
    assert consumer.process(message()).outcome is Outcome.UNAVAILABLE
    assert consumer.process(message()).outcome is Outcome.IN_PROGRESS
    assert outcomes(consumer.process_many([message(), message("2")])) == ["in_progress", "processed"]
    assert len(ran) == 2
    checker.refused.clear()
    assert consumer.process(message()).outcome is Outcome.DUPLICATE


def test_other_content_is_never_skipped_even_then():
    checker = Refusing("1")
    consumer = consumer_of(checker, fingerprint=lambda m: m.body)
    consumer.process(message("1", b"ten"))
    checker.refused.clear()
    assert consumer.process(message("1", b"eleven")).outcome is Outcome.REJECTED


def test_an_orderly_end_offers_them_once_more():
    checker = Refusing("1")
    consumer_of(checker).process(message())
    checker.refused.clear()
    checker.close()
    assert checker.protocol.claim(ClaimRequest(ORDERS.key("1"))).verdict is Verdict.DUPLICATE
    checker.close()


def test_one_that_comes_too_late_is_counted():
    clock = [1000.0]
    checker = Refusing("1", clock=lambda: clock[0])
    consumer_of(checker).process(message())
    clock[0] += 3600
    thief = checker._claim(ClaimRequest(ORDERS.key("1")))
    assert thief.verdict is Verdict.ACQUIRED
    before = counters.snapshot().get(("orders:default", Event.COMPLETION_LOST), 0)
    checker.refused.clear()
    checker.close()
    assert counters.snapshot()["orders:default", Event.COMPLETION_LOST] == before + 1


def test_an_ignored_message_whose_key_somebody_holds_is_not_acknowledged(sql_store):
    checker = sql_store.transactional(lock_timeout_s=0.2)

    def handle(message, session: Session):
        raise LookupError

    consumer = consumer_of(checker, handle, idempotent_for=(LookupError,))
    calls = []

    def busy_the_second_time(request):
        calls.append(request)
        return checker._claim(request) if len(calls) == 1 else Decision(Verdict.IN_PROGRESS)

    with answering(checker, _claim=busy_the_second_time):
        assert consumer.process(message()).outcome is Outcome.UNAVAILABLE
    assert consumer.process(message()).outcome is Outcome.IGNORED
    assert consumer.process(message()).outcome is Outcome.DUPLICATE


def test_a_take_over_whose_answer_was_lost_is_still_one(sql_store):
    checker = sql_store.leased()
    checker.protocol.abandon(checker.protocol.claim(ClaimRequest(ORDERS.key("1"))).claim)
    sql_store.age(3600)
    request = ClaimRequest(ORDERS.key("1"))
    assert checker._claim(request).lapsed
    again = checker._claim(request)
    assert (again.verdict, again.lapsed) == (Verdict.ACQUIRED, True)
    fresh = ClaimRequest(ORDERS.key("2"))
    assert not checker._claim(fresh).lapsed
    assert not checker._claim(fresh).lapsed


def test_the_question_comes_before_a_message_is_dead_of_its_deaths():
    clock = [1000.0]
    checker = MemoryChecker(clock=lambda: clock[0])
    asked, ran = [], []

    def ask(key):
        asked.append(key)
        if len(asked) == 1:
            raise ConnectionError("the bank is down")
        return len(asked) > 2

    consumer = consumer_of(checker, ran.append, max_deaths=1, on_expired_lease=ask)
    checker.protocol.abandon(checker.protocol.claim(consumer.binding.requests.of(message())).claim)
    clock[0] += 3600
    assert consumer.process(message()).outcome is Outcome.UNAVAILABLE
    assert checker.admin().get(ORDERS.key("1")).status.in_progress, "whether it happened is not known yet"
    clock[0] += 3600
    assert consumer.process(message()).outcome is Outcome.DEAD
    assert (len(asked), len(ran)) == (2, 0)


@pytest.mark.parametrize("kind", ["def", "async def"])
@pytest.mark.parametrize("answer", [True, False])
def test_the_log_says_what_the_consumer_answered_about_a_lapsed_lease(answer, kind, caplog):
    clock = [1000.0]
    checker = MemoryChecker(clock=lambda: clock[0])

    async def ask(_):
        return answer

    async def handle(_):
        pass

    if kind == "def":
        consumer = consumer_of(checker, lambda _: None, on_expired_lease=lambda _: answer)
    else:
        consumer = consumer_of(checker, handle, on_expired_lease=ask)
    checker.protocol.abandon(checker.protocol.claim(consumer.binding.requests.of(message())).claim)
    clock[0] += 3600
    if kind == "def":
        consumer.process(message())
    else:
        asyncio.run(consumer.process(message()))
    assert events(caplog) == ["expired_lease_answered", "process_died"]
    (answered,) = logged(caplog, "expired_lease_answered")
    assert (answered.key, answered.happened) == (str(ORDERS.key("1")), answer)


@pytest.mark.parametrize("answer", [None, "no", object()])
def test_an_answer_that_is_neither_true_nor_false_does_not_run_the_handler(answer, caplog):
    clock = [1000.0]
    checker = MemoryChecker(clock=lambda: clock[0])
    ran = []
    consumer = consumer_of(checker, ran.append, on_expired_lease=lambda _: answer)
    checker.protocol.abandon(checker.protocol.claim(consumer.binding.requests.of(message())).claim)
    clock[0] += 3600
    result = consumer.process(message())
    assert result.outcome is Outcome.UNAVAILABLE
    assert ran == []
    (record,) = logged(caplog, "expired_lease_not_resolved")
    assert "return True if the effect happened, or False" in record.error


def test_more_expired_failures_than_a_batch_all_go(sql_store):
    if sql_store.kind != "sqlite":
        pytest.skip("one dialect shows it, and the others take longer")
    checker = sql_store.leased(retention_s=3600.0)
    assert isinstance(checker, SqlChecker)
    for number in range(25):
        claim = checker.protocol.claim(ClaimRequest(ORDERS.key(str(number)))).claim
        checker.protocol.release(claim, Failure("no", 5))
    sql_store.age(7200)
    checker.garbage_collect(batch_size=10)
    with sql_store.engine().connect() as connection:
        left = connection.execute(sa.text(f"SELECT count(*) FROM {sql_store.table}_failures")).scalar()
    assert left == 0


def test_failures_in_memory_are_bounded_too():
    checker = MemoryChecker(max_keys=10)
    for number in range(100):
        checker.protocol.release(
            checker.protocol.claim(ClaimRequest(ORDERS.key(str(number)))).claim, Failure("no", 5)
        )
    assert len(checker.attempts) <= 10


def test_a_call_that_raises_is_counted():
    def handle(message):
        raise ValueError("no")

    before = counters.snapshot().get(("orders:default", Outcome.FAILED), 0)
    with pytest.raises(ValueError, match="no"):
        consumer_of(MemoryChecker(), handle)(message())
    assert counters.snapshot()["orders:default", Outcome.FAILED] == before + 1


def test_a_result_that_has_no_end_is_not_a_failure():
    def handle(message):
        nested = []
        for _ in range(100_000):
            nested = [nested]
        return nested

    consumer = consumer_of(MemoryChecker(), handle, store_result=True)
    assert consumer.process(message()).outcome is Outcome.PROCESSED
    assert outcomes(consumer.process_many([message("2"), message("3")])) == ["processed"] * 2
    assert consumer.process(message()).outcome is Outcome.DUPLICATE


def test_a_group_of_exceptions_is_harmless_only_if_all_of_it_is():
    policy = ExceptionPolicy(retry_for=(OSError,), idempotent_for=(LookupError,))
    harmless, real, fatal = LookupError(), OSError(), ValueError()
    assert policy.classify(ExceptionGroup("", [harmless, harmless])) is Handling.IGNORE
    assert policy.classify(ExceptionGroup("", [harmless, real])) is Handling.RETRY
    assert policy.classify(ExceptionGroup("", [fatal, ExceptionGroup("", [real])])) is Handling.RETRY
    assert policy.classify(ExceptionGroup("", [harmless, fatal])) is Handling.DEAD


def test_the_kill_switch_does_not_compare_content(monkeypatch):
    monkeypatch.setenv("IDEMPOTENT_DISABLED", "all")
    consumer = consumer_of(MemoryChecker(), fingerprint=lambda m: m.body)
    assert outcomes(consumer.process_many([message("1", b"a"), message("1", b"b")])) == ["processed"] * 2
