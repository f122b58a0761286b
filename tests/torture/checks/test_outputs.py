"""The ledger of a run from Kafka to Kafka: what readers of committed records see."""

from __future__ import annotations

import json
import threading
import time
import uuid

import pytest

from idempotent.adapters.kafka.client import Producer, make_client
from tests.torture.examination.expected import Explanations
from tests.torture.examination.history import examine
from tests.torture.stores import Outputs, outputs_of

OPEN_FOR_S = 8.0


@pytest.fixture
def ledger(kafka_bootstrap):
    url = f"kafka://{kafka_bootstrap}?semantics=exactly_once"
    outputs = Outputs("attempts://", url, f"torture_{uuid.uuid4().hex[:8]}")
    outputs.prepare()
    yield outputs
    outputs.clean()


@pytest.fixture
def transactions(kafka_bootstrap):
    producer = make_client(
        Producer, {"bootstrap.servers": kafka_bootstrap, "transactional.id": uuid.uuid4().hex}
    )
    producer.init_transactions(30)
    return producer


def begin(transactions, ledger, known_as):
    effect = {"id": known_as, "position": f"t/0/{known_as}", "process": "0.1", "attempt": 1, "fence": 1}
    transactions.begin_transaction()
    times = {"at": time.monotonic(), "wall": time.time()}
    transactions.produce(outputs_of(ledger.name), json.dumps(effect | times), partition=0)
    transactions.flush(30)


def findings(ledger, *sent):
    return examine(
        sent=sent,
        perhaps_sent=sent,
        poison=(),
        effects=list(ledger.effects()),
        dead_letters=(),
        by_position=ledger.by_position,
        may_be_late=(),
        explanations=Explanations(ledger.guarantee, [], {}, 4.0),
    )


@pytest.mark.slow
def test_an_aborted_output_is_no_effect_so_its_message_is_lost(ledger, transactions):
    begin(transactions, ledger, "1")
    transactions.abort_transaction(30)
    begin(transactions, ledger, "2")
    transactions.commit_transaction(30)
    found = findings(ledger, "1", "2")
    assert list(found.lost) == ["1"]
    assert not found.kept


def test_an_output_that_is_committed_twice_is_not_explained(ledger, transactions):
    for _ in range(2):
        begin(transactions, ledger, "1")
        transactions.commit_transaction(30)
    found = findings(ledger, "1")
    assert len(found.unexplained) == 1
    assert not found.kept


@pytest.mark.slow
def test_what_lies_behind_an_open_transaction_is_waited_for(ledger, transactions):
    begin(transactions, ledger, "1")
    commit = threading.Timer(OPEN_FOR_S, lambda: transactions.commit_transaction(30))
    commit.start()
    assert [effect.id for effect in ledger.effects()] == ["1"]
    commit.join()


@pytest.mark.slow
def test_the_ledger_is_read_from_the_start_each_time(ledger, transactions):
    begin(transactions, ledger, "1")
    transactions.commit_transaction(30)
    assert [effect.id for _ in range(2) for effect in ledger.effects()] == ["1", "1"]
