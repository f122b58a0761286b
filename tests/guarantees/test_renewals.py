"""Leases are renewed whatever fails beside them."""

from __future__ import annotations

import asyncio
import threading

import pytest

from idempotent import Outcome, Registry, current_claim
from idempotent.checkers import MemoryChecker, SqlChecker
from idempotent.checkers.leases import LeaseKeeper
from idempotent.claims import ClaimRequest, Lapsed, Verdict
from idempotent.errors import StoreUnavailableError
from idempotent.migrations import upgrade
from idempotent.observe import counters
from tests.guarantees.orders import ORDERS, Refusing, consumer_of, message, wait
from tests.support.hooks import answering
from tests.support.logs import events
from tests.support.stores import Clock


def outlast_three_leases(checker, clock):
    """Let the lease of a running handler end three times, and wait each time until it is renewed."""

    def is_held():
        asked = checker.protocol.claim(ClaimRequest(ORDERS.key("slow"), on_lapsed=Lapsed.LEAVE))
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
    keeper = LeaseKeeper(owner.renew, lambda: None, 0.06, counters.add)
    keeper.hold([MemoryChecker().protocol.claim(ClaimRequest(ORDERS.key("1"))).claim])
    wait(lambda: owner.rounds > 2, "it goes on")
    keeper.close()


def test_a_completion_whose_answer_was_lost_is_no_lost_lease(caplog):
    checker, renewals = MemoryChecker(lease_s=0.3, clock=Clock()), []

    def lost(completion):
        checker._complete(completion)
        raise StoreUnavailableError("no answer")

    def renew(claims):
        renewals.append(claims)
        return checker._renew_many(claims)

    with answering(checker, _complete=lost, _renew_many=renew):
        assert consumer_of(checker).process(message()).outcome is Outcome.UNAVAILABLE
        wait(lambda: len(renewals) > 2, "the lease is renewed")
    wait(lambda: not checker.protocol.unrecorded, "the completion is recorded")
    assert not {"lease_lost", "completion_lost"} & {*events(caplog)}
    checker.close()


@pytest.fixture
def shortage(monkeypatch):
    """Returns a function that lets the system start no threads with some names any more, and then all again."""
    start, refused = threading.Thread.start, set()

    def start_or_refuse(thread):
        if thread.name in refused:
            raise RuntimeError("can't start new thread")
        start(thread)

    def refuse(*names):
        refused.clear()
        refused.update(names)

    monkeypatch.setattr(threading.Thread, "start", start_or_refuse)
    return refuse


def test_leases_are_renewed_while_the_system_starts_no_more_threads(shortage):
    checker = MemoryChecker(lease_s=0.3, clock=(clock := Clock()))
    shortage("idempotent-renewal")
    outlast_three_leases(checker, clock)
    checker.close()


@pytest.mark.parametrize("together", [False, True])
def test_a_claim_whose_lease_nobody_could_renew_is_given_back_and_is_no_death(store, shortage, together):
    deaths, checker = [], store.leased(lease_s=600.0)
    consumer = consumer_of(checker, lambda _: deaths.append(current_claim().deaths))

    def outcomes():
        if together:
            return {each.outcome for each in consumer.process_many([message("1"), message("2")])}
        return {consumer.process(message()).outcome}

    shortage("idempotent-leases", "idempotent-owed")
    assert outcomes() == {Outcome.UNAVAILABLE}
    assert not deaths
    shortage()
    assert outcomes() == {Outcome.PROCESSED}
    assert set(deaths) == {0}
    checker.close()


@pytest.mark.parametrize("combine", [False, True], ids=["each alone", "in rounds"])
def test_a_task_is_claimed_and_recorded_where_the_system_starts_no_more_threads(shortage, tmp_path, combine):
    """After ten idle seconds, such as those of a long handler, the threads beside the loop are gone."""
    upgrade(url := f"sqlite:///{tmp_path}/keys.db")
    checker, ran = SqlChecker(url, combine=combine), []
    shortage("idempotent-side", "idempotent-rounds")

    @Registry().consumer("orders", group="billing", checker=checker)
    async def handle(message):
        ran.append(message.id)

    outcomes = [asyncio.run(handle.process(message())).outcome for _ in range(2)]
    assert outcomes == [Outcome.PROCESSED, Outcome.DUPLICATE]
    assert len(ran) == 1
    checker.close()
