"""A torture with an outbox: what the second half's rules find, and one run."""

from __future__ import annotations

import json

import pytest

from idempotent import Message
from idempotent.adapters.memory import MemoryAdapter, MemoryBroker
from idempotent.claims import Guarantee
from idempotent.errors import ConfigurationError, PublishError
from tests.torture import Servers, Settings, TortureRun
from tests.torture.examination.expected import Explanations
from tests.torture.examination.history import examine
from tests.torture.examination.record import Record, sent_ids
from tests.torture.faults.kinds import FaultGroup
from tests.torture.journal import Journal, Tail
from tests.torture.outbox import Publisher
from tests.torture.settings import Role
from tests.torture.stores import Effect

FIRST, SENT = ["m-1", "m-2"], ["m-1-sent", "m-2-sent"]


def effect(id, at=1.0, position=""):
    return Effect(id, position, "0.1", attempt=1, fence=1, at=at, wall=at)


def found_in(ledger, published=()):
    from_handlers = sent_ids(ledger)
    return examine(
        sent=[*FIRST, *from_handlers],
        perhaps_sent=[*FIRST, *from_handlers],
        poison=(),
        effects=ledger,
        dead_letters=(),
        by_position=False,
        may_be_late=(),
        explanations=Explanations(Guarantee.TRANSACTIONAL, [], {}, 4.0),
        published=published,
    )


def test_what_a_handler_sent_with_its_effect_must_arrive_once():
    both = [*map(effect, FIRST), *map(effect, SENT)]
    assert found_in(both).kept
    assert found_in(both[:-1]).lost == ["m-2-sent"]
    again = found_in([*both, effect("m-2-sent", at=2.0)])
    assert [repeat.first.id for repeat in again.unexplained] == ["m-2-sent"]


def test_what_was_sent_without_its_effect_is_strange():
    assert "m-2-sent" in found_in([effect("m-1"), *map(effect, SENT)]).strange


def test_an_order_key_is_published_in_its_order_and_may_be_repeated():
    both = [*map(effect, FIRST), *map(effect, SENT)]

    def out_of_order(*places):
        published = [effect(f"m-{n}-sent", at, f"order/{key}/{n}") for at, (key, n) in enumerate(places)]
        return list(found_in(both, published).out_of_order)

    assert out_of_order((3, 1), (3, 2), (3, 1)) == []
    assert out_of_order((3, 2), (4, 1)) == []
    assert out_of_order((3, 2), (3, 1)) == ["order/3/1"]


def test_what_waits_or_fails_behind_the_second_inbox_excuses_no_order():
    record = Record(lambda _: True, lambda _: None)
    for known_as in ("m-1", "m-1-sent"):
        record.read({"what": "held", "id": known_as, "process": "0.1"})
    assert record.may_be_late == {"m-1"}


class Refusing(MemoryAdapter):
    """Takes all but the first message of a batch."""

    def publish_many(self, messages):
        super().publish_many(messages[1:])
        raise PublishError("too large", refused={0: "too large"})


@pytest.mark.parametrize(("kind", "expected"), [(MemoryAdapter, [1, 2]), (Refusing, [2])])
def test_the_journal_has_what_the_broker_confirmed(kind, expected, tmp_path):
    path = tmp_path / "journal"
    publisher = Publisher(kind(MemoryBroker()), Journal(str(path), "3.1"))
    messages = [
        Message("t", json.dumps({"id": f"m-{n}-sent", "order": 7, "count": n}).encode(), id=str(n))
        for n in (1, 2)
    ]
    try:
        publisher.publish_many(messages)
    except PublishError:
        assert kind is Refusing
    assert [line["position"] for line in Tail(path).lines()] == [f"order/7/{n}" for n in expected]


@pytest.mark.parametrize("checker", ["transactional+sqlite:///{folder}/x.db", "sqlite:///{folder}/x.db"])
def test_an_outbox_needs_a_transaction_and_a_database_of_several_processes(checker, tmp_path):
    servers = Servers("amqp://127.0.0.1:1", checker.format(folder=tmp_path))
    with pytest.raises(ConfigurationError, match="outbox"):
        TortureRun(Settings(seed=1, outbox=True), servers, "torture_x", tmp_path)


def test_senders_a_relay_and_receivers_are_processes_of_their_own():
    roles = Settings(seed=1, processes=2, outbox=True).roles
    assert roles == (Role.SENDS, Role.SENDS, Role.RELAYS, Role.RECEIVES, Role.RECEIVES)
    assert Settings(seed=1, processes=2).roles == (Role.CONSUMES, Role.CONSUMES)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_what_handlers_send_arrives_once_and_in_order(rabbitmq_url, postgres_url, tmp_path):
    settings = Settings(seed=2, seconds=6.0, lease_s=2.0, processes=2, outbox=True)
    run = TortureRun(
        settings, Servers(rabbitmq_url, f"transactional+{postgres_url}"), "torture_outbox", tmp_path
    )
    run.run()
    report = run.report()
    shown = json.dumps(report.as_json(), indent=1)
    assert report.kept_promise, shown
    assert report.groups[FaultGroup.KILL] + report.groups[FaultGroup.PAUSE], shown
    assert len(run.record.published) > 50, shown
