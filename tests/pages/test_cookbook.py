"""docs/cookbook.md: its SQL removes the errors that it says, on every database."""

import re
import time
from pathlib import Path

from sqlalchemy import text

from idempotent.claims import UNKNOWN_EFFECT, ClaimRequest, Failure
from idempotent.keys import KeySpace

PAGE = (Path(__file__).parents[2] / "docs" / "cookbook.md").read_text()
DAY_S = 86400
BILLING, MAIL = KeySpace("orders.paid", "billing"), KeySpace("orders.paid", "mail")


def kill(checker, key, error):
    claim = checker.protocol.claim(ClaimRequest(key)).claim
    checker.protocol.release(claim, Failure(error, max_attempts=1))


def test_the_errors_of_a_consumer_are_removed_up_to_a_time(sql_store):
    [statement] = re.findall(r"^```sql\n(.+?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    before = str(int((time.time() - 5 * DAY_S) * 1_000_000))
    statement, times = re.subn(r"(?<=update_at < )\d+", before, statement)
    assert times == 1
    checker = sql_store.leased()
    kill(checker, BILLING.key("old"), "no address for ada@example.org")
    kill(checker, BILLING.key("unknown"), UNKNOWN_EFFECT)
    kill(checker, MAIL.key("old"), "no address for eve@example.org")
    sql_store.age(10 * DAY_S)
    kill(checker, BILLING.key("new"), "no address for bob@example.org")
    with sql_store.admin_engine.begin() as connection:
        connection.execute(text(statement.replace("deduplicate_tbl", sql_store.table)))
    errors = [
        checker.admin().get(key).last_error
        for key in (*map(BILLING.key, ("old", "unknown", "new")), MAIL.key("old"))
    ]
    assert errors == [
        "removed",
        UNKNOWN_EFFECT,
        "no address for bob@example.org",
        "no address for eve@example.org",
    ]
