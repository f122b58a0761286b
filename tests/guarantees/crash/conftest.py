from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.guarantees.crash.child import Job
from tests.guarantees.crash.scene import Scene
from tests.support.stores import Store


@pytest.fixture
def leased(shared_store: Store, tmp_path: Path) -> Iterator[Scene]:
    """Leased claims on every shared store; effects in a file beside it."""
    yield from _scene(shared_store, tmp_path, transactional=False)


@pytest.fixture
def transactional(sql_store: Store, tmp_path: Path) -> Iterator[Scene]:
    """Key and effect in one transaction, on every SQL store."""
    yield from _scene(sql_store, tmp_path, transactional=True)


def _scene(store: Store, folder: Path, *, transactional: bool) -> Iterator[Scene]:
    job = Job(store.kind, store.url, store.table, str(folder / "ledger"), transactional=transactional)
    scene = Scene(store, job)
    try:
        yield scene
    finally:
        scene.close()
