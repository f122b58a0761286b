"""What `with once(...)` and `async with once(...)` do, over every checker."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import Connection
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from idempotent import (
    ConfigurationError,
    DuplicateError,
    FingerprintMismatchError,
    InProgressError,
    MissingKeyError,
    StoreError,
    current_claim,
    once,
)
from tests.functions.kinds import Kind
from tests.support.hooks import answering, unreachable


def test_a_block_runs_once(kind: Kind) -> None:
    ran: list[str] = []

    def body(block: Any) -> None:
        assert block.claim is current_claim()
        ran.append(block.claim.key.text)
        block.value = {"number": len(ran)}

    kind.block(body, "m", name="orders")
    with pytest.raises(LookupError):
        current_claim()
    for _ in range(2):
        with pytest.raises(DuplicateError, match="orders:tests:m is done") as raised:
            kind.block(body, "m", name="orders")
        assert raised.value.value == {"number": 1}
    kind.block(body, "m", name="others")
    assert ran == ["orders:tests:m", "others:tests:m"]


def test_an_exception_in_a_block_passes_and_frees_its_key(kind: Kind) -> None:
    ran: list[int] = []

    def body(_: Any) -> None:
        ran.append(1)
        if len(ran) < 3:
            raise ZeroDivisionError

    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            kind.block(body, "m")
    kind.block(body, "m")
    with pytest.raises(DuplicateError):
        kind.block(body, "m")
    assert len(ran) == 3


def test_an_interrupt_in_a_block_passes_and_frees_its_key(kind: Kind) -> None:
    if kind.is_async:
        pytest.skip("there it ends the event loop")

    def interrupted(_: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        kind.block(interrupted, "m")
    kind.block(lambda _: None, "m")


def test_a_block_beside_another_one_does_not_begin(kind: Kind) -> None:
    if kind.name == "sqlite-transactional":
        pytest.skip("its one writer has the file")

    def body(_: Any) -> None:
        with pytest.raises(InProgressError) as raised:
            other(lambda _: pytest.fail("it ran"))
        assert 0 < raised.value.retry_after_s <= 1

    def other(inner: Any) -> None:
        if kind.is_async:
            import threading

            errors: list[BaseException] = []

            def run() -> None:
                try:
                    kind.block(inner, "m")
                except BaseException as error:
                    errors.append(error)

            thread = threading.Thread(target=run)
            thread.start()
            thread.join(30)
            raise errors[0]
        kind.block(inner, "m")

    kind.block(body, "m")


def test_a_block_without_a_key_or_with_other_content_does_not_begin(kind: Kind) -> None:
    fails = lambda _: pytest.fail("it ran")  # noqa: E731
    for key in ("", None):
        with pytest.raises(MissingKeyError):
            kind.block(fails, key)
    kind.block(lambda _: None, "m", fingerprint="5 EUR")
    with pytest.raises(FingerprintMismatchError):
        kind.block(fails, "m", fingerprint="6 EUR")


def test_a_block_whose_store_does_not_answer_does_not_begin(kind: Kind) -> None:
    hooks = {"_claim": unreachable, "_claim_many": unreachable}
    with answering(kind.checker, **hooks), pytest.raises(StoreError, match="gone"):
        kind.block(lambda _: pytest.fail("it ran"), "m")


def test_the_effect_of_a_block_commits_with_its_key(kind: Kind) -> None:
    if not kind.is_transactional:
        with pytest.raises(ConfigurationError, match="no transaction to share"):
            kind.block(lambda _: pytest.fail("it ran"), "m", session=Session)
        return
    insert = kind.store.effects.insert().values(id="m")

    async def in_task(*, fails: bool) -> None:
        async with once(kind.checker, "m", group="tests", session=AsyncSession) as block:
            await block.session.execute(insert)
            if fails:
                raise ZeroDivisionError

    def in_thread(*, fails: bool) -> None:
        with once(kind.checker, "m", group="tests", session=Connection) as block:
            block.session.execute(insert)
            if fails:
                raise ZeroDivisionError

    def run(*, fails: bool) -> None:
        if kind.is_async:
            asyncio.run(in_task(fails=fails))
        else:
            in_thread(fails=fails)

    with pytest.raises(ZeroDivisionError):
        run(fails=True)
    assert kind.store.booked() == {}
    run(fails=False)
    with pytest.raises(DuplicateError):
        run(fails=False)
    assert kind.store.booked() == {"m": 1}


def test_a_block_whose_transaction_the_database_undid_says_so_and_frees_its_key(kind: Kind) -> None:
    if kind.name not in ("mysql-transactional", "postgres-transactional"):
        pytest.skip("shown where a connection can be ended")

    def body(block: Any) -> None:
        block.session.execute(kind.store.effects.insert().values(id="m"))
        if not lost:
            lost.append(1)
            me = "pg_backend_pid()" if kind.store.kind == "postgres" else "CONNECTION_ID()"
            number = block.session.scalar(sa.text(f"SELECT {me}"))
            end = "SELECT pg_terminate_backend({})" if kind.store.kind == "postgres" else "KILL {}"
            with kind.store.admin_engine.connect() as other:
                other.execute(sa.text(end.format(number)))

    lost: list[int] = []
    with pytest.raises(Exception, match=r"undid the transaction|lost|terminat|closed"):
        kind.block(body, "m", session=Session)
    assert kind.store.booked() == {}
    kind.block(body, "m", session=Session)
    assert kind.store.booked() == {"m": 1}


def test_a_block_object_is_not_entered_twice_at_once(kind: Kind) -> None:
    if kind.is_async:
        pytest.skip("the same guard")
    block = once(kind.checker, "m", group="tests")
    with block, pytest.raises(RuntimeError, match="call once\\(\\) for each block"), block:
        pytest.fail("it ran")
    with pytest.raises(DuplicateError):
        block.__enter__()
