"""Each alert fires in its trouble, and none in a quiet hour: unit tests by promtool."""

import json
import re
from pathlib import Path

import pytest

from idempotent.checkers.sql.store import MOST_EXPIRED

ALERTS = Path(__file__).parents[3] / "docs" / "monitoring" / "alerts.yml"
CONSUMER = {"consumer": "orders:billing"}
STORE = {"store": "keys", **CONSUMER}
OUTBOX = {"outbox": "outbox_tbl"}
INSTANCE = {"job": "shop", "instance": "worker-1:9000"}
ON_INSTANCE = 'job="shop", instance="worker-1:9000"'

# The alert, the series and their values minute by minute, the minute in which it fires, its labels, and its summary.
TROUBLES = {
    "IdempotentNotReady": (
        {f"idempotent_ready{{{ON_INSTANCE}}}": "1x9 0x10"},
        *(12, {"severity": "page", **INSTANCE}),
        "worker-1:9000 is not ready: its broker or a store does not answer, or it is stuck",
    ),
    "IdempotentNoProcess": (
        {f"idempotent_ready{{{ON_INSTANCE}}}": "1x9 stale _x20"},
        *(20, {"severity": "page", "job": "shop"}),
        "shop: no worker and no relay runs, or none is scraped",
    ),
    "IdempotentStoreUnavailable": (
        {
            'idempotent_outcomes_total{consumer="orders:billing", outcome="unavailable"}': "0x9 4 8 12 16 20 24"
        },
        *(14, {"severity": "page", **CONSUMER}),
        "The store of orders:billing does not answer: its messages wait",
    ),
    "IdempotentEffectMayRepeat": (
        {'idempotent_events_total{consumer="orders:billing", event="completion_lost"}': "0x9 1x10"},
        *(12, {"severity": "page", **CONSUMER}),
        "orders:billing: an effect may have happened twice",
    ),
    "IdempotentHandlersFail": (
        {
            'idempotent_outcomes_total{consumer="orders:billing", outcome="processed"}': "0+2x30",
            'idempotent_outcomes_total{consumer="orders:billing", outcome="failed"}': "0+6x30",
            'idempotent_outcomes_total{consumer="orders:billing", outcome="dead"}': "0x30",
        },
        *(15, {"severity": "page", **CONSUMER}),
        "orders:billing: more than half of its executions fail",
    ),
    "IdempotentHandlerHangs": (
        {f'idempotent_longest_running_seconds{{consumer="orders:billing", {ON_INSTANCE}}}': "0.4+60x12"},
        *(11, {"severity": "page", **CONSUMER, **INSTANCE}),
        "orders:billing: a handler on worker-1:9000 has run for 11m 0s",
    ),
    "IdempotentMessagesDead": (
        {'idempotent_outcomes_total{consumer="orders:billing", outcome="dead"}': "90x6 _ 90x11 121x10"},
        *(22, {"severity": "ticket", **CONSUMER}),
        "orders:billing: messages that died in 15 minutes: about 33",  # 33.2: `increase` extrapolates over the gap
    ),
    # Nothing dies any more, and the process that measures the store changes.
    "IdempotentDeadKeysWait": (
        {
            f'idempotent_store_dead_keys{{store="keys", consumer="orders:billing", {ON_INSTANCE}}}': "0x4 3x30 stale",
            'idempotent_store_dead_keys{store="keys", consumer="orders:billing", instance="worker-2:9000"}': (
                "_x44 3x60"
            ),
        },
        *(70, {"severity": "ticket", **STORE}),
        "orders:billing: dead keys that wait for a person: 3",
    ),
    "IdempotentLeaseLost": (
        {'idempotent_lease_lost_total{consumer="orders:billing"}': "0x9 1x10"},
        *(12, {"severity": "ticket", **CONSUMER}),
        "orders:billing: a lease ended while its handler ran",
    ),
    "IdempotentClaimsLapsed": (
        {'idempotent_store_lapsed_claims{store="keys", consumer="orders:billing"}': "0 2x30"},
        *(20, {"severity": "ticket", **STORE}),
        "orders:billing: keys in progress whose lease has ended, for 15 minutes: 2",
    ),
    # One message, first in one worker, then in another.
    "IdempotentMessagesHeld": (
        {
            f'idempotent_held{{consumer="orders:billing", {ON_INSTANCE}}}': "0x4 1x8 0x40",
            'idempotent_held{consumer="orders:billing", instance="worker-2:9000"}': "0x12 1x40",
        },
        *(22, {"severity": "ticket", **CONSUMER}),
        "orders:billing: workers have held messages for 15 minutes, now 1",
    ),
    "IdempotentBacklogGrows": (
        {'idempotent_backlog_messages{consumer="orders:billing"}': "10+50x60"},
        *(40, {"severity": "ticket", **CONSUMER}),
        "orders:billing: messages that wait: 2010",
    ),
    # Its only worker starts again, and is away for eight minutes.
    "IdempotentConsumerPaused": (
        {f'idempotent_paused{{consumer="orders:billing", {ON_INSTANCE}}}': "0x9 1x120 stale _x7 1x140"},
        *(255, {"severity": "ticket", **CONSUMER}),
        "orders:billing has been paused for four hours",
    ),
    "IdempotentRanUnprotected": (
        {'idempotent_events_total{consumer="orders:billing", event="ran_disabled"}': "0x9 3x10"},
        *(12, {"severity": "ticket", **CONSUMER}),
        "orders:billing: handlers ran without protection",
    ),
    "IdempotentOutboxMessagesHeld": (
        {'idempotent_outbox_messages{outbox="outbox_tbl", state="held"}': "0 1x10"},
        *(5, {"severity": "page", **OUTBOX}),
        "outbox_tbl: messages that a broker refuses, or that wait behind one: 1",
    ),
    "IdempotentOutboxWaits": (
        {'idempotent_outbox_oldest_seconds{outbox="outbox_tbl"}': "0+60x10"},
        *(8, {"severity": "page", **OUTBOX}),
        "outbox_tbl: the oldest message has waited for 8m 0s",
    ),
    "IdempotentNoRelay": (
        {'idempotent_outbox_relays{outbox="outbox_tbl"}': "1x4 stale _x30"},
        *(15, {"severity": "page", **OUTBOX}),
        "outbox_tbl: no relay is at work",
    ),
    # As many as a measure counts.
    "IdempotentKeysExpire": (
        {'idempotent_store_expired_keys{store="keys"}': f"{MOST_EXPIRED}x90 _x9 {MOST_EXPIRED}x200"},
        *(200, {"severity": "ticket", "store": "keys"}),
        f"keys: expired keys that are not deleted: at least {MOST_EXPIRED}",
    ),
    "IdempotentPreparedRunWaits": (
        {'idempotent_store_prepared_run_waits_seconds{store="keys"}': "0x4 0+60x40"},
        *(40, {"severity": "ticket", "store": "keys"}),
        "keys: a PREPARED run of Spark has had no driver for 35m 0s",
    ),
}
# A sudden pile that is worked off as fast as before: 10 a second, so in 50 minutes.
PILE = {
    'idempotent_backlog_messages{consumer="orders:billing"}': "0x9 30000x9",
    'idempotent_outcomes_total{consumer="orders:billing", outcome="processed"}': "0+600x18",
    'idempotent_outcomes_total{consumer="orders:billing", outcome="failed"}': "0+6000x18",
}
PILED = (
    "IdempotentBacklogGrows",
    *(17, {"severity": "ticket", **CONSUMER}),
    "orders:billing: messages that wait: 30000",
)
# Two processes of a Kafka group. In 15 minutes each partition grows by 75, and both by 150. One moves to the other
# process, and for a minute both processes show it: a sum over processes would say 500 then.
LAG = "idempotent_backlog_messages{{consumer='orders:billing', partition='orders-{}', instance='worker-{}:9000'}}"
GROUP = {
    LAG.format(0, 1): "100+5x60",
    LAG.format(1, 1): "100+5x20 _x40",
    LAG.format(1, 2): "_x20 200+5x40",
}
GROUP_LAGS = (
    "IdempotentBacklogGrows",
    20,
    {"severity": "ticket", **CONSUMER},
    "orders:billing: messages that wait: 400",
)
# Two workers of a consumer that is paused for three and a half hours.
PAUSE = {
    'idempotent_paused{consumer="orders:billing", instance="worker-1:9000"}': "1x210 0x60",
    'idempotent_paused{consumer="orders:billing", instance="worker-2:9000"}': "0 1x210 0x59",
}
# Two processes of a RabbitMQ queue, which both show all of it. It grows by 75 in 15 minutes, which is not much.
WHOLE = "idempotent_backlog_messages{{consumer='orders:billing', partition='', instance='worker-{}:9000'}}"
QUEUE = {
    WHOLE.format(1): "100+5x60",
    WHOLE.format(2): "100+5x60",
    'idempotent_outcomes_total{consumer="orders:billing", outcome="processed"}': "0+600x60",
}
# Relays that have no lease any more, though their processes go on.
IDLE_RELAY = {'idempotent_outbox_relays{outbox="outbox_tbl"}': "1x4 0x30"}
QUIET = {
    f"idempotent_ready{{{ON_INSTANCE}}}": "1 0 1x58",
    'idempotent_outcomes_total{consumer="orders:billing", outcome="processed"}': "0+600x60",
    'idempotent_outcomes_total{consumer="orders:billing", outcome="failed"}': "0+6x60",
    'idempotent_outcomes_total{consumer="orders:billing", outcome="dead"}': "0x60",
    'idempotent_outcomes_total{consumer="orders:billing", outcome="unavailable"}': "0x60",
    'idempotent_events_total{consumer="orders:billing", event="completion_lost"}': "0x60",
    'idempotent_events_total{consumer="orders:billing", event="ran_without_key"}': "0x60",
    'idempotent_lease_lost_total{consumer="orders:billing"}': "0x60",
    'idempotent_longest_running_seconds{consumer="orders:billing"}': "0.2x60",
    'idempotent_backlog_messages{consumer="orders:billing"}': "5 900 40 0 12 800 0 3x53",
    'idempotent_paused{consumer="orders:billing"}': "0x10 1x40 0x9",
    'idempotent_held{consumer="orders:billing"}': "0x5 40x14 0 3x14 0x25",
    'idempotent_store_dead_keys{store="keys", consumer="orders:billing"}': "2x30 0x30",
    'idempotent_outbox_relays{outbox="outbox_tbl"}': "2x10 0 _ 1x48",
    'idempotent_store_lapsed_claims{store="keys", consumer="orders:billing"}': "0 1 0x58",
    'idempotent_store_prepared_run_waits_seconds{store="keys"}': "0+80x20 0x39",
    'idempotent_store_expired_keys{store="keys"}': "90000x60",
    'idempotent_outbox_messages{outbox="outbox_tbl", state="held"}': "0x60",
    'idempotent_outbox_oldest_seconds{outbox="outbox_tbl"}': "2x60",
}


def unit(name: str, series: dict[str, str], alerts: list[dict[str, object]]) -> dict[str, object]:
    return {
        "name": name,
        "interval": "1m",
        "input_series": [{"series": one, "values": values} for one, values in series.items()],
        "alert_rule_test": alerts,
    }


def fired(name: str, minute: int, labels: dict[str, str], summary: str) -> dict[str, object]:
    alert = {"exp_labels": labels, "exp_annotations": {"summary": summary}}
    return {"eval_time": f"{minute}m", "alertname": name, "exp_alerts": [alert]}


def test_each_alert_fires_in_its_trouble_and_none_in_a_quiet_hour(promtool, tmp_path):
    # promtool compares all annotations word by word, and here the labels and the summary are meant.
    rules = re.sub(r"(?m)^ +description:.*\n", "", ALERTS.read_text())
    (tmp_path / "rules.yml").write_text(rules)
    fires = [
        *(unit(name, series, [fired(name, *expected)]) for name, (series, *expected) in TROUBLES.items()),
        unit("a pile", PILE, [fired(*PILED)]),
        unit("two processes of a group", GROUP, [fired(*GROUP_LAGS)]),
        unit("idle relays", IDLE_RELAY, [fired("IdempotentNoRelay", *TROUBLES["IdempotentNoRelay"][1:])]),
    ]
    silent = [
        {"eval_time": f"{minute}m", "alertname": name, "exp_alerts": []}
        for name in TROUBLES
        for minute in (5, 20, 59)
    ]
    unalarmed = [
        {"eval_time": f"{minute}m", "alertname": "IdempotentConsumerPaused", "exp_alerts": []}
        for minute in (205, 250)
    ]
    tests = {
        "rule_files": ["rules.yml"],
        "evaluation_interval": "1m",
        "tests": [
            unit("a quiet hour", QUIET, silent),
            unit("two processes of a queue", QUEUE, silent),
            unit("a pause of a morning", PAUSE, unalarmed),
            *fires,
        ],
    }
    (tmp_path / "tests.yml").write_text(json.dumps(tests))
    promtool("test", "rules", tmp_path / "tests.yml")


def test_the_rules_are_valid_and_each_is_tested(promtool):
    promtool("check", "rules", ALERTS)
    named = re.findall(r"(?m)^ +- alert: (\w+)$", ALERTS.read_text())
    assert named == list(TROUBLES)


@pytest.mark.parametrize("name", TROUBLES)
def test_an_alert_says_what_happened_and_what_to_do(name):
    rule = ALERTS.read_text().partition(f"alert: {name}\n")[2].partition("- alert:")[0]
    assert "summary:" in rule
    assert "description:" in rule
