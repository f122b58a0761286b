"""Pauses in every store: they stay until somebody resumes, and are no keys of a consumer."""

import threading

import pytest

from idempotent.admin import PAUSES, KeyFilter
from idempotent.checkers import AttemptChecker, OffsetChecker
from idempotent.checkers.pauses import Pauses, pause_of, pauses_in
from idempotent.claims import ClaimRequest
from idempotent.errors import ConfigurationError
from idempotent.keys import KeySpace
from tests.cli.support import BILLING, MAIL, dead
from tests.support.stores import SHARED, SQL, open_store

NAME = BILLING.name
LONG_AGO_S = 400 * 86400.0


@pytest.fixture(params=["leased", "transactional"])
def kind(request):
    return request.param


@pytest.fixture(params=SHARED)
def store(request):
    yield from open_store(request.param, request, reuse=True)


@pytest.fixture
def checker(store, kind):
    if kind == "transactional" and store.kind not in SQL:
        pytest.skip("Redis has no transactions")
    return getattr(store, kind)()


def test_a_pause_says_who_and_why_and_lasts_until_somebody_resumes(store, checker):
    pause, is_new = Pauses(checker).pause(NAME, by="anna@pod", note="bank: down\nOPS-12")
    assert is_new
    assert (pause.consumer, pause.by, pause.note) == (NAME, "anna@pod", "bank: down OPS-12")
    assert 0 <= pause.now_us - pause.since_us < 60_000_000
    store.age(LONG_AGO_S)
    assert checker.garbage_collect() == 0
    found = pause_of(store.leased(), NAME)
    assert (found.by, found.note) == (pause.by, pause.note)
    assert pause_of(checker, MAIL.name) is None
    assert [each.consumer for each in pauses_in(checker)] == [NAME]
    ended = Pauses(checker).resume(NAME)
    assert (ended.since_us, ended.by, ended.note) == (found.since_us, found.by, found.note)
    assert pause_of(checker, NAME) is None
    assert list(pauses_in(checker)) == []
    assert Pauses(checker).resume(NAME) is None
    assert Pauses(checker).pause(NAME, by="ben")[1], "it can be paused again"
    assert Pauses(checker).pause(NAME, by="cleo")[0].by == "ben"


def test_the_keys_of_the_library_are_in_no_list_count_or_measure_of_consumers(store):
    dead(store, BILLING.key("1"))
    Pauses(store.leased()).pause(NAME, by="anna")
    leading = store.leased()
    assert leading.lead("metrics").take()
    admin = store.leased().admin()
    assert [record.text for record in admin.list(KeyFilter())] == ["orders.paid:billing:1"]
    assert [(stats.consumer, stats.count) for stats in admin.stats()] == [(NAME, 1)]
    assert list(admin.measure().consumers) == [NAME]
    (lead,) = admin.list(KeyFilter("idempotent:metrics"))
    assert lead.status.in_progress
    (shown,) = admin.list(KeyFilter(PAUSES.name))
    assert shown.text == f"idempotent:pause:{NAME}"


@pytest.mark.parametrize(
    "space",
    [KeySpace("a:b", "50%"), KeySpace("s" * 300, "g"), KeySpace("naïve", "g")],
    ids=["%", "long", "ï"],
)
def test_every_name_of_a_consumer_can_be_paused(store, space):
    checker = store.leased()
    Pauses(checker).pause(space.name, by="anna")
    assert [each.consumer for each in pauses_in(checker)] == [space.name]
    assert Pauses(checker).resume(space.name) is not None


def test_of_people_who_pause_and_resume_at_once_one_does_it(store):
    for act, is_first in (
        (lambda pauses, who: pauses.pause(NAME, by=who)[1], True),
        (lambda pauses, who: pauses.resume(NAME) is not None, False),
    ):
        together, did = threading.Barrier(4), []

        def one(who, act=act, together=together, did=did):
            pauses = Pauses(store.leased())
            together.wait(30)
            did.append(act(pauses, who))

        people = [threading.Thread(target=one, args=(f"p{n}",)) for n in range(4)]
        for each in people:
            each.start()
        for each in people:
            each.join(60)
        assert sorted(did) == [False, False, False, True]
        assert (pause_of(store.leased(), NAME) is not None) is is_first


def test_a_pause_of_somebody_who_died_in_between_can_be_made_and_removed(store):
    dying = store.leased(lease_s=0.2)
    assert dying.protocol.claim(ClaimRequest(PAUSES.key(NAME))).claim
    dying.close()
    assert pause_of(store.leased(), NAME) is None, "it is not paused yet"
    assert Pauses(store.leased()).pause(NAME, by="anna")[1]
    assert Pauses(store.leased()).resume(NAME).by == "anna"


def test_a_checker_whose_dead_keys_expire_makes_no_pause_that_would_end_by_itself(store):
    with pytest.raises(ConfigurationError, match="dead_retention_s=60"):
        Pauses(store.leased(dead_retention_s=60))


def test_one_without_keys_is_refused_by_name(tmp_path):
    with pytest.raises(ConfigurationError, match="consumers of OffsetChecker cannot be paused"):
        Pauses(OffsetChecker(f"sqlite:///{tmp_path}/offsets.db"))


def test_keys_in_memory_pause_the_consumers_of_their_own_process():
    checker = AttemptChecker()
    Pauses(checker).pause(NAME, by="anna")
    assert pause_of(checker, NAME).by == "anna"
    assert [each.consumer for each in pauses_in(checker)] == [NAME]
    assert checker.admin().stats() == []
