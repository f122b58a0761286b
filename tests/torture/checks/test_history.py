"""What may explain an effect that happened again, and what may not."""

from __future__ import annotations

import pytest

from idempotent.claims import Guarantee
from idempotent.message import Position
from tests.torture.examination.expected import Explanations
from tests.torture.examination.history import examine
from tests.torture.faults.kinds import FaultKind, Incident, Mishap
from tests.torture.stores import Effect

LEASE_S = 4.0


def effect(id="m-1", process="0.1", at=10.0, position=""):
    return Effect(id, position, process, attempt=1, fence=1, at=at, wall=at)


def incident(kind, at, until=None, process="0.1"):
    return Incident(kind, at, at if until is None else until, process)


def findings(effects, *incidents, guarantee=Guarantee.LEASED, settled=None, **options):
    ids = options.pop("ids", {each.id for each in effects})
    return examine(
        **{
            "sent": ids,
            "perhaps_sent": ids,
            "poison": (),
            "effects": effects,
            "dead_letters": (),
            "by_position": False,
            "may_be_late": (),
            "explanations": Explanations(guarantee, incidents, settled or {}, LEASE_S),
            **options,
        }
    )


TWICE = [effect(), effect(process="1.1", at=20.0)]
EXPLAINING = {
    "killed after the effect": incident(FaultKind.KILL, 11.0),
    "killed at a point": incident(FaultKind.KILL_AT_POINT, 11.0),
    "killed for a wrong clock": incident(FaultKind.SHIFT_CLOCK, 11.0),
    "paused": incident(FaultKind.PAUSE, 9.0, 16.0),
    "the second one paused": incident(FaultKind.PAUSE_AT_POINT, 9.0, 19.0, "1.1"),
    "starved": incident(Mishap.STARVED, 9.0, 16.0),
    "store out of reach": incident(FaultKind.STALL_STORE, 9.0, 16.0, "0.2"),
    "store away": incident(FaultKind.RESTART_STORE, 9.0, 16.0, ""),
    "keys lost": incident(FaultKind.FORGET, 15.0, process=""),
    "keys evicted": incident(FaultKind.EVICT, 15.0, process=""),
}
EXPLAINING_NOTHING = {
    "another consumer killed": incident(FaultKind.KILL, 11.0, process="2.1"),
    "killed before the effect": incident(FaultKind.KILL, 9.0),
    "killed after the second one": incident(FaultKind.KILL, 21.0),
    "paused for a moment": incident(FaultKind.PAUSE, 10.0, 11.0),
    "another consumer paused": incident(FaultKind.PAUSE, 9.0, 16.0, "2.1"),
    "paused long before": incident(FaultKind.PAUSE, -20.0, -3.0),
    "cut": incident(FaultKind.CUT_STORE, 10.5),
    "an answer lost": incident(FaultKind.LOSE_STORE_ANSWER, 10.5),
    "broker away": incident(FaultKind.RESTART_BROKER, 9.0, 16.0, ""),
    "stopped in order": incident(FaultKind.STOP, 10.5, 11.5),
    "dead letters refused": incident(FaultKind.FULL_LETTERS, 9.0, 16.0, ""),
    "retries refused": incident(FaultKind.FULL_RETRIES, 9.0, 16.0, ""),
    "keys lost afterwards": incident(FaultKind.FORGET, 21.0, process=""),
}


@pytest.mark.parametrize("what", EXPLAINING.values(), ids=EXPLAINING)
def test_a_repeat_under_a_lease_is_explained_by(what):
    found = findings(TWICE, what)
    assert [repeat.why for repeat in found.repeats] == [what]
    assert found.kept


@pytest.mark.parametrize("what", EXPLAINING_NOTHING.values(), ids=EXPLAINING_NOTHING)
def test_a_repeat_under_a_lease_is_not_explained_by(what):
    found = findings(TWICE, what)
    assert len(found.unexplained) == 1
    assert not found.kept


@pytest.mark.parametrize("what", EXPLAINING.values(), ids=EXPLAINING)
def test_nothing_explains_a_repeat_in_a_transaction(what):
    assert len(findings(TWICE, what, guarantee=Guarantee.TRANSACTIONAL).unexplained) == 1


@pytest.mark.parametrize(
    "what", [incident(FaultKind.KILL, 12.0), incident(FaultKind.PAUSE, 12.0, 19.0)], ids=["kill", "pause"]
)
def test_what_comes_after_the_completion_was_recorded_explains_nothing(what):
    found = findings(TWICE, what, settled={("m-1", "0.1"): 11.0})
    assert len(found.unexplained) == 1


def test_a_store_that_lost_keys_explains_what_was_recorded():
    assert findings(TWICE, incident(FaultKind.FORGET, 15.0, process=""), settled={("m-1", "0.1"): 11.0}).kept


def test_what_was_sent_and_never_happened_is_lost():
    assert findings([effect()], ids=["m-1", "m-2"]).lost == ["m-2"]


def test_what_the_broker_did_not_confirm_is_not_lost_but_may_happen():
    assert findings([], ids=(), perhaps_sent=["m-1"]).kept
    assert findings([effect()], sent=(), perhaps_sent=["m-1"]).kept
    assert findings([effect()], sent=(), perhaps_sent=()).strange == ["m-1"]


def test_poison_ends_as_a_dead_letter_and_nothing_else_does():
    assert findings([], ids=["m-1"], poison=["m-1"], dead_letters=["m-1"]).kept
    assert findings([], ids=["m-1"], poison=["m-1"]).not_dead == ["m-1"]
    assert findings([effect()], poison=["m-1"], dead_letters=["m-1"]).strange == ["m-1"]
    assert findings([effect()], dead_letters=["m-1"]).strange == ["m-1"]


def test_a_partition_is_in_order_unless_a_later_message_was_first():
    first, second = effect("m-1", at=1.0, position="t/0/7"), effect("m-2", at=2.0, position="t/0/8")
    elsewhere = effect("m-3", at=0.5, position="t/1/99")
    assert findings([first, second, elsewhere]).kept
    late = effect("m-1", at=3.0, position="t/0/7")
    assert findings([second, late]).out_of_order == ["t/0/7"]
    assert findings([second, late], may_be_late=["m-1"]).kept


def test_a_partition_is_out_of_order_whatever_the_leader_epochs_of_its_messages():
    first = effect("m-1", at=3.0, position=str(Position("t", 0, 7, 7, 0)))
    second = effect("m-2", at=2.0, position=str(Position("t", 0, 8, 8, 0)))
    third = effect("m-3", at=1.0, position=str(Position("t", 0, 9, 9, 1)))
    assert findings([third, second, first]).out_of_order == ["t/0/8/0", "t/0/7/0"]


def test_where_positions_are_the_keys_one_message_sent_twice_is_two():
    twice = [effect(position="t/0/1"), effect(position="t/0/2", at=20.0)]
    assert findings(twice, guarantee=Guarantee.TRANSACTIONAL, by_position=True).kept
    again = [effect(position="t/0/1"), effect(position="t/0/1", at=20.0)]
    assert len(findings(again, guarantee=Guarantee.TRANSACTIONAL, by_position=True).unexplained) == 1


def test_other_headers_or_another_result_are_strange():
    found = findings([effect()], wrong={"m-1"})
    assert list(found.strange) == ["m-1"]
    assert not found.kept
