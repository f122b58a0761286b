from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.guarantees.crash.child import Job
from tests.guarantees.crash.scene import Scene
from tests.support.stores import ASYNC, Store

KINDS = ["plain", pytest.param("async", marks=pytest.mark.slow)]


@pytest.fixture(params=KINDS)
def leased(request: pytest.FixtureRequest, shared_store: Store, tmp_path: Path) -> Iterator[Scene]:
    """Leased claims on every shared store, of plain and async handlers; effects in a file beside it."""
    yield from _scene(shared_store, tmp_path, transactional=False, is_async=request.param == "async")


@pytest.fixture(params=KINDS)
def transactional(request: pytest.FixtureRequest, sql_store: Store, tmp_path: Path) -> Iterator[Scene]:
    """Key and effect in one transaction, on every SQL store, of plain and async handlers."""
    is_async = request.param == "async"
    if is_async and sql_store.kind not in ASYNC:
        pytest.skip("SQLite has no asyncio driver that is supported")
    yield from _scene(sql_store, tmp_path, transactional=True, is_async=is_async)


def _scene(store: Store, folder: Path, *, transactional: bool, is_async: bool = False) -> Iterator[Scene]:
    ledger = str(folder / "ledger")
    job = Job(store.kind, store.url, store.table, ledger, transactional=transactional, is_async=is_async)
    scene = Scene(store, job)
    try:
        yield scene
    finally:
        scene.close()
