"""A process of a server on stdio is killed in its tool, and the agent calls again: how often the effect happened."""

from __future__ import annotations

import asyncio
import secrets
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from mcp import Client, StdioServerParameters

from tests.adapters.mcp_plugin.shop import LEASE_S
from tests.project.house import ROOT
from tests.support.stores import Store, open_store

pytestmark = pytest.mark.slow
DEADLINE_S = 180


@dataclass
class Ran:
    """What came of an order."""

    texts: list[str]
    runs: int
    effects: int


@pytest.fixture
def store(request):
    with contextmanager(open_store)("postgres", request, reuse=True) as store:
        yield store


def call_until_told(store: Store, kind: str, ran: Path) -> Ran:
    """Call the tool of a server whose process dies in it, then twice that of another one, as an agent does."""
    order = secrets.token_hex(6)
    words = ["-m", "tests.adapters.mcp_plugin.shop", store.url, store.table, str(ran), kind]
    server = StdioServerParameters(
        command=sys.executable, args=words, cwd=ROOT, env={"PYTHONPATH": str(ROOT)}
    )

    def lines() -> list[str]:
        return ran.read_text().splitlines()

    async def call() -> Any:
        async with Client(server) as client:
            return await client.call_tool("book", {"order": order})

    async def run() -> list[str]:
        async with asyncio.timeout(DEADLINE_S):
            with pytest.raises(Exception):  # noqa: B017, PT011 - a group, or a closed connection
                await call()
            assert lines() == ["book"]
            if kind != "transactional":
                await asyncio.sleep(LEASE_S)
            return [(await call()).content[0].text for _ in range(2)]

    texts = asyncio.run(run())
    with store.admin_engine.connect() as connection:
        count = sa.text(f"SELECT count(*) FROM {store.table}_effects WHERE id = :id")
        effects = connection.scalar(count, {"id": order})
    return Ran(texts, len(lines()), effects or 0)


def test_with_a_transaction_the_effect_happens_once(store, tmp_path):
    ran = call_until_told(store, "transactional", tmp_path / "ran")
    assert (ran.runs, ran.effects) == (2, 1)
    assert all('"cents": 1' in text for text in ran.texts)


def test_an_effect_outside_the_transaction_happens_again_unless_a_person_is_asked(store, tmp_path):
    retried = call_until_told(store, "retry", tmp_path / "retried")
    assert (retried.runs, retried.effects) == (2, 2)
    assert all('"cents": 1' in text for text in retried.texts)
    parked = call_until_told(store, "park", tmp_path / "parked")
    assert (parked.runs, parked.effects) == (1, 1)
    assert all("Ask a person" in text for text in parked.texts)
