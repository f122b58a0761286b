"""Races of claims that go to the store one by one: those of the contract go through rounds, which would hide them."""

import pytest

from idempotent.testing.checker_contract.races import RacesContract
from tests.support.stores import Store


class TestRacesWithoutRounds(RacesContract):
    store: Store

    @pytest.fixture(autouse=True)
    def _store(self, shared_store):
        self.store = shared_store

    def make_checker(self, *, lease_s, retention_s):
        return self.store.leased(lease_s=lease_s, retention_s=retention_s, combine=False)

    def age(self, checker, seconds):
        del checker
        self.store.age(seconds)
