"""Attempts in SQL are counted once: a lost answer, or another delivery meanwhile, changes no number."""

import pytest
import sqlalchemy as sa

from idempotent.checkers import OffsetChecker, SqlChecker, TransactionalSqlChecker
from idempotent.checkers.sql.failures import FailedAttempt, FailureTable
from idempotent.claims import Claim, ClaimRequest, Completion, Failure, Released, Verdict
from idempotent.keys import KeySpace
from idempotent.message import Position
from idempotent.stores.sql.cursor import execute
from idempotent.testing.proxy import Loss, Proxy
from tests.support.stores import SQL, open_store

SPACE = KeySpace("orders", "failures")
KEY = SPACE.key("1")


@pytest.fixture(params=["mysql", "postgres"])
def server(request):
    yield from open_store(request.param, request, reuse=True)


@pytest.fixture
def behind(server):
    """(a function that makes a checker behind the proxy, the proxy)."""
    url = sa.make_url(server.url)
    proxy = Proxy(url.host, url.port)
    engine = sa.create_engine(url.set(port=proxy.port))
    made = []

    def make(kind, **options):
        made.append(kind(engine, table=server.table, **options))
        return made[-1]

    yield make, proxy
    for checker in made:
        checker.close()
    proxy.close()
    engine.dispose()


LOSSES = pytest.mark.parametrize("loss", [Loss.ANSWER, Loss.QUESTION])
LIMITS = pytest.mark.parametrize("max_attempts", [1, 2, 9])


def attempts_of(server, key=KEY):
    with server.admin_engine.connect() as connection:
        name = f"{server.table}_failures"
        return connection.execute(
            sa.text(f"SELECT attempts FROM {name} WHERE key_hash = :hash"), {"hash": key.hash}
        ).scalar()


@LOSSES
@LIMITS
@pytest.mark.parametrize("before", [0, 1])
def test_a_failure_whose_commit_has_no_answer_is_counted_once(server, behind, loss, max_attempts, before):
    make, proxy = behind
    checker = make(SqlChecker)
    for _ in range(before):
        checker.protocol.release(checker.protocol.claim(ClaimRequest(KEY)).claim, Failure("no", 9))
    claim = checker.protocol.claim(ClaimRequest(KEY)).claim
    proxy.lose(b"COMMIT", loss)
    released = checker.protocol.release(claim, Failure("no", max_attempts))
    assert proxy.cut_off.is_set()
    assert released == Released(owned=True, attempts=before + 1, dead=before + 1 >= max_attempts)
    assert attempts_of(server) == before + 1


@LOSSES
@LIMITS
def test_a_transactional_failure_whose_commit_has_no_answer_is_counted_once(
    server, behind, loss, max_attempts
):
    make, proxy = behind
    checker = make(TransactionalSqlChecker)
    claim = checker.protocol.claim(ClaimRequest(KEY)).claim
    proxy.lose(b"COMMIT", loss)
    released = checker.protocol.release(claim, Failure("no", max_attempts))
    assert proxy.cut_off.is_set()
    assert released == Released(owned=True, attempts=1, dead=max_attempts == 1)
    assert attempts_of(server) == 1


@LOSSES
def test_the_failures_of_a_group_whose_commit_has_no_answer_are_counted_once(server, behind, loss):
    make, proxy = behind
    checker = make(SqlChecker)
    keys = [SPACE.key(str(number)) for number in range(3)]
    claims = [decision.claim for decision in checker.protocol.claim_many([ClaimRequest(key) for key in keys])]
    proxy.lose(b"COMMIT", loss)
    released = checker.protocol.release_many(
        [(claims[0], Failure("no", 9)), (claims[1], None), (claims[2], Failure("no", 1))]
    )
    assert proxy.cut_off.is_set()
    assert [each.attempts for each in released] == [1, 0, 1]
    assert [attempts_of(server, key) for key in keys] == [1, None, 1]


@LOSSES
def test_a_failure_at_an_offset_whose_commit_has_no_answer_is_counted_once(server, behind, loss):
    make, proxy = behind
    checker = make(OffsetChecker)
    partition = SPACE.key("topic/0")
    checker.begin({partition: 0})
    request = ClaimRequest(KEY, partition=partition, position=Position("topic", 0, 0, 0))
    claim = checker.protocol.claim(request).claim
    proxy.lose(b"COMMIT", loss)
    assert checker.protocol.release(claim, Failure("no", 9)).attempts == 1
    assert proxy.cut_off.is_set()
    assert attempts_of(server) == 1


ROLLS_BACK = {
    "mysql": "SIGNAL SQLSTATE '40001' SET MYSQL_ERRNO = 1213",
    "postgres": "DO $$ BEGIN RAISE SQLSTATE '40001'; END $$",
}


def count_attempt(server, checker, *tries):
    """Count an attempt as one process does. Each of its tries is (what happens before, how it is rolled back)."""
    connections, left = checker.store.connections, list(tries)
    failures = FailureTable(connections.dialect, server.table, 60_000_000)
    failed = FailedAttempt(Claim(KEY, b"owner"), Failure("no", 9))

    def work(driver):
        before, rolls_back = left.pop(0) if left else (None, None)
        if before is not None:
            before()
        failures.count(driver, failed)
        if rolls_back is not None:
            execute(driver, rolls_back)
        return failed.released.attempts

    return connections.run_atomically(work)


def test_an_attempt_that_was_rolled_back_counts_beside_that_of_another_process(server):
    """The other one has reached the same number meanwhile."""

    def another():
        assert count_attempt(server, server.transactional()) == 1

    tries = (None, ROLLS_BACK[server.kind]), (another, None)
    assert count_attempt(server, server.transactional(), *tries) == 2
    assert attempts_of(server) == 2


def test_an_attempt_whose_commit_has_no_answer_is_counted_once_after_a_rollback_too(server, behind):
    make, proxy = behind
    lose = (lambda: proxy.lose(b"COMMIT", Loss.ANSWER)), None
    tries = lose, (None, ROLLS_BACK[server.kind]), (None, None)
    assert count_attempt(server, make(TransactionalSqlChecker), *tries) == 1
    assert proxy.cut_off.is_set()
    assert attempts_of(server) == 1


@pytest.mark.parametrize("kind", SQL)
@pytest.mark.parametrize("fatal", [False, True])
def test_a_copy_that_fails_after_the_message_is_dead_keeps_its_reason(kind, fatal, request):
    for store in open_store(kind, request, reuse=True):
        checker, copy = store.transactional(), store.transactional()
        late = copy.protocol.claim(ClaimRequest(KEY)).claim
        late.transaction.close()
        claim = checker.protocol.claim(ClaimRequest(KEY)).claim
        assert checker.protocol.release(claim, Failure("first", 9 if fatal else 1, fatal=fatal)).dead
        assert copy.protocol.release(late, Failure("second", 9 if fatal else 1)) == Released(
            True, 1, dead=True
        )
        assert checker.protocol.claim(ClaimRequest(KEY)).reason == "first"


@pytest.mark.parametrize("kind", SQL)
@pytest.mark.parametrize("max_attempts", [1, 9])
def test_a_failure_of_a_key_that_was_claimed_since_counts_nothing(kind, max_attempts, request):
    """The rollback freed it, and another delivery was faster than the note of the failure."""
    for store in open_store(kind, request, reuse=True):
        checker, other = store.transactional(), store.leased()
        claim = checker.protocol.claim(ClaimRequest(KEY)).claim
        claim.transaction.close()
        theirs = other.protocol.claim(ClaimRequest(KEY)).claim
        assert other.protocol.complete_many([Completion(theirs)]) == [True]
        assert checker.protocol.release(claim, Failure("no", max_attempts)) == Released(owned=False)
        assert attempts_of(store) is None
        assert checker.protocol.claim(ClaimRequest(KEY)).verdict is Verdict.DUPLICATE
