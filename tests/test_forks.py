"""What a child of a fork must not share with its parent."""

import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from idempotent import Message
from idempotent.adapters import memory
from idempotent.adapters.files import FileAdapter
from idempotent.adapters.memory import MemoryAdapter, MemoryBroker, named_broker
from idempotent.checkers import MemoryChecker
from idempotent.checkers.leases import LeaseKeeper
from idempotent.checkers.owed import OwedSteps
from idempotent.checkers.side_calls import SideThreads
from idempotent.claims import OWNER_BYTES, Claim, ClaimRequest, new_owner
from idempotent.forks import generation
from idempotent.keys import NO_KEY, KeySpace
from idempotent.observe import Counters, Event, counters
from idempotent.outbox import Outbox, Relay
from idempotent.stores.idle import Idle
from idempotent.stores.sql.bridge import Bridge
from idempotent.testing.crashpoints import _Passings
from idempotent.worker import process
from idempotent.worker.process import relaxed_python_gc


def test_no_two_claims_have_one_owner_in_threads_and_children():
    with ThreadPoolExecutor(8) as pool:
        many = [
            owner
            for part in pool.map(lambda _: [new_owner() for _ in range(2000)], range(8))
            for owner in part
        ]
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        # The parent makes as many: a child that went on with its prefix and count would give the same ones.
        os.write(writer, b"".join(new_owner() for _ in range(100)))
        os._exit(0)
    os.close(writer)
    many += [new_owner() for _ in range(100)]
    with os.fdopen(reader, "rb") as file:
        theirs = file.read()
    os.waitpid(child, 0)
    many += [theirs[start : start + OWNER_BYTES] for start in range(0, len(theirs), OWNER_BYTES)]
    assert len(many) == 16_200
    assert len(set(many)) == len(many)
    assert {len(owner) for owner in many} == {OWNER_BYTES}


def test_each_fork_is_another_generation():
    child = os.fork()
    if not child:
        grandchild = os.fork()
        if not grandchild:
            os._exit(generation.number)
        os._exit(10 * generation.number + os.waitstatus_to_exitcode(os.waitpid(grandchild, 0)[1]))
    ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert ended == 10 * (generation.number + 1) + generation.number + 2


def exit_code_of_a_child(ask):
    """What the function answers in a child of this process."""
    child = os.fork()
    if not child:
        try:
            os._exit(ask())
        finally:
            os._exit(99)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_child_takes_no_connection_of_its_parents():
    idle = Idle()
    idle.put("the parent's")
    assert exit_code_of_a_child(lambda: int(idle.take() is not None)) == 0
    assert idle.take() == "the parent's"


def test_a_child_renews_its_own_claims_and_none_of_its_parents():
    renewed = []

    class Renewing:
        def renew(self, claims):
            renewed.append([claim.fence for claim in claims])
            return [True] * len(claims)

    renewing = Renewing()
    keeper = LeaseKeeper(renewing.renew, lambda: None, 0.3, counters.add)
    keeper.hold([Claim(NO_KEY, 1)])

    def ask():
        renewed.clear()
        keeper.hold([Claim(NO_KEY, 2)])
        deadline = time.monotonic() + 30
        while not renewed and time.monotonic() < deadline:
            time.sleep(0.05)
        return int(not renewed or any(fences != [2] for fences in renewed))

    assert exit_code_of_a_child(ask) == 0
    keeper.close()


def counts():
    counters = Counters()
    return counters._lock, lambda: counters.add("orders:default", Event.RAN_DISABLED)


def claims_in_memory():
    checker = MemoryChecker()
    return checker.lock, lambda: checker.protocol.claim(ClaimRequest(KeySpace("s", "g").key("1")))


def starts_renewing():
    checker = MemoryChecker()
    keeper = checker.protocol._keeper
    return keeper._repeating._lock, lambda: (keeper.hold([Claim(NO_KEY, 1)]), checker.close())


def stops_renewing():
    checker = MemoryChecker()
    checker.protocol._keeper.hold([Claim(NO_KEY, 1)])
    return checker.protocol._keeper._repeating._stopped._cond, checker.close


def stops_retrying():
    owed = OwedSteps(lambda _: True, lambda _: None, lambda: None, counters.add)
    return owed._lock, owed.close


def ends_side_threads():
    threads = SideThreads("forked", most=1)
    return threads._lock, threads.close


def starts_a_loop():
    bridge = Bridge()
    return bridge._starting, lambda: (bridge.run(int), bridge.close())


def relaxes_gc():
    return process._lock, lambda: relaxed_python_gc(1).__enter__()


def publishes():
    broker = MemoryBroker()
    return broker._changed, lambda: broker.publish(Message("orders"))


def wakes_a_relay():
    woken = Relay(Outbox("sqlite:///forked.db"), MemoryAdapter(MemoryBroker()))._destinations[0].woken
    return woken._cond, woken.set  # as a commit does


def stops_a_relay():
    relay = Relay(Outbox("sqlite:///forked.db"), MemoryAdapter(MemoryBroker()))
    return relay._destinations[0]._stopping._cond, relay.stop


def wakes_an_adapter():
    adapter = FileAdapter("forked.jsonl")
    return adapter._woken._cond, adapter.wake


def names_a_broker():
    return memory._naming, lambda: named_broker("forked")


def counts_crash_points():
    passings = _Passings()
    return passings._lock, lambda: passings.count("before_claim")


@pytest.mark.parametrize(
    "owner",
    [
        counts,
        claims_in_memory,
        starts_renewing,
        stops_renewing,
        stops_retrying,
        ends_side_threads,
        starts_a_loop,
        relaxes_gc,
        publishes,
        wakes_a_relay,
        stops_a_relay,
        wakes_an_adapter,
        names_a_broker,
        counts_crash_points,
    ],
    ids=lambda owner: owner.__name__,
)
def test_a_child_does_not_wait_for_a_lock_that_a_thread_of_its_parent_held(owner):
    lock, use = owner()
    held, done = threading.Event(), threading.Event()

    def hold():
        with lock:
            held.set()
            done.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(60)

    def ask():
        signal.alarm(10)  # a child that waits for ever ends by it
        use()
        return 0

    try:
        assert exit_code_of_a_child(ask) == 0
    finally:
        done.set()
        thread.join()
