"""The contract on PostgreSQL, and what is its own."""

from idempotent.claims import ClaimRequest, Completion, Verdict, new_owner
from idempotent.keys import KeySpace
from idempotent.stores.sql.cursor import query
from tests.checkers.contract.over_store import AsyncTransactionalOver, LeasedOver, TransactionalOver
from tests.support.stores import open_store


class TestSqlChecker(LeasedOver):
    kind = "postgres"


class TestTransactionalSqlChecker(TransactionalOver):
    kind = "postgres"


class TestAsyncTransactionalSqlChecker(AsyncTransactionalOver):
    kind = "postgres"


def test_no_plan_is_kept_of_a_statement_for_many_keys(request):
    """The server would go on reading all of a table that was small when the plan was made."""
    for store in open_store("postgres", request):
        checker = store.leased(lease_s=30.0, retention_s=60.0)
        space = KeySpace("orders", "plans")
        for number in range(10):
            keys = [space.key(f"{number}-{one}") for one in range(10)]
            owner = new_owner()
            decisions = checker.protocol.claim_many([ClaimRequest(key, owner) for key in keys])
            assert all(checker.protocol.complete_many([Completion(decision.claim) for decision in decisions]))
            again = checker.protocol.claim_many([ClaimRequest(key) for key in keys])
            assert {decision.verdict for decision in again} == {Verdict.DUPLICATE}
        prepared = checker.store.connections.run(
            lambda driver: query(driver, "SELECT statement FROM pg_prepared_statements")
        )
        texts = [text for (text,) in prepared]
        assert any("INSERT" in text for text in texts)
        assert not [text for text in texts if " IN ($1," in text]
