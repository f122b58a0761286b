"""A seed decides what is done, to whom and when."""

from __future__ import annotations

from tests.torture import Servers, Settings
from tests.torture.faults.kinds import FaultKind
from tests.torture.faults.schedule import FeasibleFaults, schedule
from tests.torture.settings import Role
from tests.torture.stores import Store
from tests.torture.traffic import Behaviour, behaviour_of

POINTS = tuple(f"{when}_{step}" for step in ("claim", "effect", "ack") for when in ("before", "after"))
KINDS = tuple(FaultKind)


def test_the_same_seed_makes_the_same_faults_and_another_one_others():
    settings = Settings(seed=7, seconds=300)
    assert schedule(settings, KINDS, POINTS) == schedule(settings, KINDS, POINTS)
    assert schedule(settings, KINDS, POINTS) != schedule(Settings(seed=8, seconds=300), KINDS, POINTS)


def test_a_fault_that_cannot_happen_changes_nothing_about_the_others():
    settings = Settings(seed=7, seconds=300)
    fewer = tuple(kind for kind in KINDS if kind is not FaultKind.SHIFT_CLOCK)
    expected = [fault for fault in schedule(settings, KINDS, POINTS) if fault.kind in fewer]
    assert list(schedule(settings, fewer, POINTS)) == expected


def test_each_kind_happens_however_short_the_time():
    faults = schedule(Settings(seed=7, seconds=5), KINDS, POINTS)
    assert {fault.kind for fault in faults} == set(KINDS)
    assert all(0 < fault.at_s < 5 for fault in faults)


def test_every_crash_point_gets_its_turn():
    faults = schedule(Settings(seed=7, seconds=300), KINDS, POINTS)
    assert {fault.point for fault in faults if fault.kind is FaultKind.KILL_AT_POINT} == set(POINTS)


def test_a_process_that_only_relays_dies_where_it_publishes():
    settings = Settings(seed=7, seconds=300, outbox=True)
    relay = settings.roles.index(Role.RELAYS)
    kinds = (FaultKind.KILL_AT_POINT, FaultKind.PAUSE_AT_POINT)
    points = {fault.point for fault in schedule(settings, kinds, POINTS) if fault.slot == relay}
    assert points == {"before_publish", "after_publish"}


def test_what_a_message_does_is_in_the_seed():
    seen = [behaviour_of(7, number) for number in range(2000)]
    assert seen == [behaviour_of(7, number) for number in range(2000)]
    assert set(seen) == set(Behaviour)


def test_a_fault_that_cannot_happen_has_a_reason(tmp_path):
    servers = Servers("amqps://localhost", f"transactional+sqlite:///{tmp_path}/db")
    store = Store(servers.checker_url, "torture_x", lease_s=1.0)
    found = FeasibleFaults.of(servers, store, is_kafka=False)
    assert set(found.kinds) == {
        FaultKind.KILL,
        FaultKind.KILL_AT_POINT,
        FaultKind.STOP,
        FaultKind.PAUSE,
        FaultKind.PAUSE_AT_POINT,
    }
    assert set(found.kinds) | set(found.missing) == set(FaultKind)
    assert "TLS" in found.missing[FaultKind.CUT_BROKER]
    assert "--restart-store" in found.missing[FaultKind.RESTART_STORE]
