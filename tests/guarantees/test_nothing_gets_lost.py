"""Ways in which a claim, a lease or an effect could get lost that no table of crashes lists."""

from __future__ import annotations

import time

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from idempotent import Message, Outcome, Registry
from idempotent.checkers import MemoryChecker, SqlChecker
from idempotent.checkers.leases import LeaseKeeper
from idempotent.claims import ClaimRequest, Completion, Failure, KeyStatus, Lapsed, Verdict
from idempotent.errors import StoreUnavailableError
from idempotent.keys import KeySpace
from idempotent.observe import Event, counters
from idempotent.policy import ExceptionPolicy, Handling
from tests.support.stores import Clock

ORDERS = KeySpace("orders", "default")
WAIT_S = 20


def message(name="1", body=b""):
    return Message("orders", body, id=name)


def consumer_of(checker, handle=lambda message: None, **options):
    return Registry().consumer("orders", checker=checker, **options)(handle)


def outcomes(results):
    return [result.outcome.value for result in results]


def wait(look, what):
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        if look():
            return
        time.sleep(0.02)
    raise AssertionError(what)


class Unshowable(Exception):
    def __str__(self):
        raise RuntimeError("no words")


# Nothing outlives the code that made it


def test_an_exception_that_cannot_be_shown_is_a_failure_like_others(store):
    def handle(message):
        raise Unshowable

    consumer = consumer_of(store.leased(), handle)
    result = consumer.process(message())
    assert (result.outcome, type(result.error)) == (Outcome.FAILED, Unshowable)
    assert consumer.process(message()).outcome is Outcome.FAILED


@pytest.mark.parametrize("together", [False, True])
def test_whatever_escapes_takes_its_transaction_with_it(sql_store, monkeypatch, together):
    engine = sql_store.engine(pool_size=1, max_overflow=0, pool_timeout=5)
    checker = sql_store.transactional(engine)

    def handle(message, session: Session):
        session.execute(sql_store.effects.insert().values(id=message.id))
        if buggy:
            raise LookupError

    consumer = consumer_of(checker, handle)
    buggy = True

    def fail(*_):
        raise RuntimeError("a bug of ours")

    with monkeypatch.context() as patch:
        patch.setattr(ExceptionPolicy, "classify", fail)
        with pytest.raises(RuntimeError):
            consumer.process_many([message("1"), message("2")]) if together else consumer.process(message())
    buggy = False
    assert engine.pool.checkedout() == 0
    assert outcomes(consumer.process_many([message("1"), message("2")])) == ["processed", "processed"]
    assert sql_store.booked() == {"1": 1, "2": 1}


def test_a_question_that_fails_leaves_no_transaction_open(sql_store):
    """The table was a leased checker's before, and one of its leases has lapsed."""
    lapsing = sql_store.leased()
    lapsing.desk.abandon(lapsing.desk.claim(ClaimRequest(ORDERS.key("1"))).claim)
    sql_store.age(3600)
    engine = sql_store.engine()

    def ask(key):
        raise ConnectionError("the bank is down")

    def handle(message, session: Session):
        pass

    consumer = consumer_of(sql_store.transactional(engine), handle, on_expired_lease=ask)
    assert consumer.process(message()).outcome is Outcome.UNAVAILABLE
    assert engine.pool.checkedout() == 0


def test_a_store_error_of_the_handler_is_its_own_and_leaves_nothing_open(sql_store):
    engine = sql_store.engine()

    def handle(message, session: Session):
        raise StoreUnavailableError("another store of the application")

    consumer = consumer_of(sql_store.transactional(engine), handle, on_missing_key="process")
    assert consumer.process(message(None)).outcome is Outcome.FAILED
    assert engine.pool.checkedout() == 0


# Renewal


class Refusing(MemoryChecker):
    """Takes no completion of the keys in `refused`, and may renew badly."""

    def __init__(self, *refused, **options):
        super().__init__(**options)
        self.refused = {ORDERS.key(name).hash for name in refused}
        self.bugs = []

    def _complete(self, completion: Completion):
        if completion.claim.key.hash in self.refused:
            raise StoreUnavailableError("not this one")
        return super()._complete(completion)

    def _renew_many(self, claims):
        if self.bugs:
            raise self.bugs.pop()
        return super()._renew_many(claims)


def outlast_three_leases(checker, clock):
    """Let the lease of a running handler end three times, and wait each time until it is renewed."""

    def is_held():
        asked = checker.desk.claim(ClaimRequest(ORDERS.key("slow"), on_lapsed=Lapsed.LEAVE))
        return asked.verdict is Verdict.IN_PROGRESS and not asked.lapsed

    def handle(message):
        for _ in range(3):
            clock.ahead_s += checker.lease_s * 1.5
            wait(is_held, "the lease is renewed")

    result = consumer_of(checker, handle).process(message("slow"))
    assert result.outcome is Outcome.PROCESSED, result.error


def test_a_completion_that_is_refused_for_ever_stops_nobody_elses_renewal():
    checker = Refusing("poison", lease_s=0.3, clock=(clock := Clock()))
    assert consumer_of(checker).process(message("poison")).outcome is Outcome.UNAVAILABLE
    outlast_three_leases(checker, clock)
    checker.close()


def test_a_bug_in_one_renewal_is_not_the_end_of_all(caplog):
    checker = Refusing(lease_s=0.3, clock=(clock := Clock()))
    checker.bugs = [KeyError("a bug")]
    outlast_three_leases(checker, clock)
    assert checker.bugs == []
    assert "lease_renewal_failed" in caplog.text
    checker.close()


def test_a_checker_that_is_used_after_close_renews_again():
    checker = MemoryChecker(lease_s=0.3, clock=(clock := Clock()))
    consumer_of(checker).process(message())
    checker.close()
    outlast_three_leases(checker, clock)
    checker.close()


def test_a_keeper_survives_a_wrong_number_of_answers():
    class Owner:
        rounds = 0

        def renew(self, claims):
            self.rounds += 1
            return []

    owner = Owner()
    keeper = LeaseKeeper(owner.renew, 0.06)
    keeper.hold([MemoryChecker().desk.claim(ClaimRequest(ORDERS.key("1"))).claim])
    wait(lambda: owner.rounds > 2, "it goes on")
    keeper.close()


# Completions that the store did not take


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
    assert checker.desk.claim(ClaimRequest(ORDERS.key("1"))).verdict is Verdict.DUPLICATE
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
    checker.desk._renew_and_record([])
    assert counters.snapshot()["orders:default", Event.COMPLETION_LOST] == before + 1
    checker.close()


# Transactions that a handler ends behind everybody's back


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("strict", [False, True])
def test_a_transaction_ended_by_a_raw_cursor_loses_nothing_silently(sql_store, strict, together):
    if sql_store.kind == "sqlite":
        pytest.skip("SQLite's driver begins no transaction by itself, so the plain check sees it")

    def handle(message, session: Session):
        session.execute(sql_store.effects.insert().values(id=message.id))
        if message.id == "2":
            session.connection().connection.dbapi_connection.commit()
        if message.id == "3":
            raise ConnectionError("so the group is undone")

    checker = sql_store.transactional(strict=strict)
    consumer = consumer_of(checker, handle, max_attempts=2)
    group = [message(name) for name in "1234"]
    results = consumer.process_many(group) if together else [consumer.process(one) for one in group]
    effects = sql_store.booked()
    for one, result in zip(group, results, strict=True):
        if result.outcome in (Outcome.PROCESSED, Outcome.DUPLICATE):
            assert effects.get(one.id) == 1, f"{one.id} was acknowledged without its effect"
        assert effects.get(one.id, 0) <= 1
    if together:
        assert "dead" in outcomes(results), "a person has to look"
        record = checker.admin().get(ORDERS.key("4"))
        assert record.status is KeyStatus.DEAD
        assert "effect unknown" in record.last_error


def test_a_comment_does_not_hide_a_commit(sql_store):
    def handle(message, session: Session):
        session.execute(sql_store.effects.insert().values(id=message.id))
        session.execute(sa.text("  /* app=shop */ -- twice\n COMMIT"))

    consumer = consumer_of(sql_store.transactional(), handle, max_attempts=1)
    assert consumer.process(message()).outcome is Outcome.DEAD
    assert sql_store.booked() == {}


def test_an_ignored_message_whose_key_somebody_holds_is_not_acknowledged(sql_store, monkeypatch):
    checker = sql_store.transactional(lock_timeout_s=0.2)

    def handle(message, session: Session):
        raise LookupError

    consumer = consumer_of(checker, handle, idempotent_for=(LookupError,))
    from idempotent.checkers import TransactionalSqlChecker
    from idempotent.claims import Decision

    claim = TransactionalSqlChecker._claim
    calls = []

    def busy_the_second_time(self, request):
        calls.append(request)
        return claim(self, request) if len(calls) == 1 else Decision(Verdict.IN_PROGRESS)

    with monkeypatch.context() as patch:
        patch.setattr(TransactionalSqlChecker, "_claim", busy_the_second_time)
        assert consumer.process(message()).outcome is Outcome.UNAVAILABLE
    assert consumer.process(message()).outcome is Outcome.IGNORED
    assert consumer.process(message()).outcome is Outcome.DUPLICATE


def test_a_pool_without_a_free_connection_is_an_unavailable_store(sql_store):
    engine = sql_store.engine(pool_size=1, max_overflow=0, pool_timeout=0.2)

    def handle(message, session: Session):
        pass

    consumer = consumer_of(sql_store.transactional(engine), handle, on_missing_key="process")
    with engine.connect():
        for name in ("1", None):
            result = consumer.process(message(name))
            assert (result.outcome, type(result.error)) == (Outcome.UNAVAILABLE, StoreUnavailableError)


# Lapsed leases


def test_a_take_over_whose_answer_was_lost_is_still_one(sql_store):
    checker = sql_store.leased()
    checker.desk.abandon(checker.desk.claim(ClaimRequest(ORDERS.key("1"))).claim)
    sql_store.age(3600)
    request = ClaimRequest(ORDERS.key("1"))
    assert checker._claim(request).lapsed
    again = checker._claim(request)
    assert (again.verdict, again.lapsed) == (Verdict.ACQUIRED, True)
    fresh = ClaimRequest(ORDERS.key("2"))
    assert not checker._claim(fresh).lapsed
    assert not checker._claim(fresh).lapsed


def test_the_question_comes_before_the_last_attempt_is_counted():
    clock = [1000.0]
    checker = MemoryChecker(clock=lambda: clock[0])
    asked, ran = [], []

    def ask(key):
        asked.append(key)
        if len(asked) == 1:
            raise ConnectionError("the bank is down")
        return len(asked) > 2

    consumer = consumer_of(checker, ran.append, max_attempts=2, on_expired_lease=ask)
    checker.desk.abandon(checker.desk.claim(consumer.binding.requests.of(message())).claim)
    clock[0] += 3600
    assert consumer.process(message()).outcome is Outcome.UNAVAILABLE
    assert checker.admin().get(ORDERS.key("1")).attempts == 0, "nobody knows yet whether it was one"
    clock[0] += 3600
    assert consumer.process(message()).outcome is Outcome.PROCESSED
    assert (len(asked), len(ran)) == (2, 1)
    assert checker.admin().get(ORDERS.key("1")).attempts == 1


# Bounds, counters and policies


def test_more_expired_failures_than_a_batch_all_go(sql_store):
    if sql_store.kind != "sqlite":
        pytest.skip("one dialect shows it, and the others take longer")
    checker = sql_store.leased(retention_s=3600.0)
    assert isinstance(checker, SqlChecker)
    for number in range(25):
        claim = checker.desk.claim(ClaimRequest(ORDERS.key(str(number)))).claim
        checker.desk.release(claim, Failure("no", 5))
    sql_store.age(7200)
    checker.garbage_collect(batch_size=10)
    with sql_store.engine().connect() as connection:
        left = connection.execute(sa.text(f"SELECT count(*) FROM {sql_store.table}_failures")).scalar()
    assert left == 0


def test_failures_in_memory_are_bounded_too():
    checker = MemoryChecker(max_keys=10)
    for number in range(100):
        checker.desk.release(
            checker.desk.claim(ClaimRequest(ORDERS.key(str(number)))).claim, Failure("no", 5)
        )
    assert len(checker.keys.attempts) <= 10


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
