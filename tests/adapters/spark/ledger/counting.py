"""How many claims of a run a store has. The product never needs to know."""

from __future__ import annotations

import re
from collections import Counter

import sqlalchemy as sa

from idempotent.adapters.spark.ledger import RunLedger
from idempotent.adapters.spark.ledger.claims import ClaimState
from idempotent.adapters.spark.ledger.redis import RedisRunStore, head_of
from idempotent.adapters.spark.ledger.runs import RunRef
from idempotent.adapters.spark.ledger.sql import SqlRunStore
from idempotent.schema import run_claims_name
from tests.adapters.spark.ledger.memory import MemoryRunStore


def claims_of(ledger: RunLedger, ref: RunRef) -> dict[ClaimState, int]:
    """The number of claims that a run owns now, by state."""
    match ledger.store:
        case MemoryRunStore() as store:
            found = Counter(claim.state for claim in store.memory.claims.values() if claim.token == ref.token)
        case RedisRunStore() as store:
            found = _in_redis(store, ref)
        case SqlRunStore() as store:
            claims = sa.table(run_claims_name(store._table), sa.column("run"), sa.column("state"))
            statement = sa.select(claims.c.state, sa.func.count()).where(claims.c.run == ref.token)
            with store._engine.connect() as connection:
                found = Counter(dict(connection.execute(statement.group_by(claims.c.state)).all()))
    return {state: found[state] for state in ClaimState}


def _in_redis(store: RedisRunStore, ref: RunRef) -> Counter[ClaimState]:
    client = store._store.client
    match = re.sub(rb"([\\*?\[\]^])", rb"\\\1", store._claims) + b"*"
    names = set(client.scan_iter(match=match, count=1000))
    heads = [head_of(value) for value in map(client.get, names) if value]
    return Counter(state for token, state in heads if token == ref.token)
