"""Each alert fires in its trouble, and none in a quiet hour: unit tests by promtool."""

import json
import re
from pathlib import Path

import pytest

ALERTS = Path(__file__).parents[3] / "docs" / "monitoring" / "alerts.yml"
PAGE = ALERTS.parents[1] / "monitoring.md"
CONSUMER = {"consumer": "orders:billing"}
STORE = {"store": "keys", **CONSUMER}
OUTBOX = {"outbox": "outbox_tbl"}

# The alert, the series and their values minute by minute, the minute in which it fires, and its labels.
TROUBLES = {
    "IdempotentStoreUnavailable": (
        {
            'idempotent_outcomes_total{consumer="orders:billing", outcome="unavailable"}': "0x9 4 8 12 16 20 24"
        },
        *(14, {"severity": "page", **CONSUMER}),
    ),
    "IdempotentEffectMayRepeat": (
        {'idempotent_events_total{consumer="orders:billing", event="completion_lost"}': "0x9 1x10"},
        *(12, {"severity": "page", **CONSUMER}),
    ),
    "IdempotentHandlersFail": (
        {
            'idempotent_outcomes_total{consumer="orders:billing", outcome="processed"}': "0+2x30",
            'idempotent_outcomes_total{consumer="orders:billing", outcome="failed"}': "0+6x30",
            'idempotent_outcomes_total{consumer="orders:billing", outcome="dead"}': "0x30",
        },
        *(15, {"severity": "page", **CONSUMER}),
    ),
    "IdempotentHandlerHangs": (
        {'idempotent_longest_running_seconds{consumer="orders:billing"}': "0+60x12"},
        *(11, {"severity": "page", **CONSUMER}),
    ),
    "IdempotentMessagesDead": (
        {'idempotent_outcomes_total{consumer="orders:billing", outcome="dead"}': "0x9 1x10"},
        *(12, {"severity": "ticket", **CONSUMER}),
    ),
    "IdempotentLeaseLost": (
        {'idempotent_lease_lost_total{consumer="orders:billing"}': "0x9 1x10"},
        *(12, {"severity": "ticket", **CONSUMER}),
    ),
    "IdempotentClaimsLapsed": (
        {'idempotent_store_lapsed_claims{store="keys", consumer="orders:billing"}': "0 2x30"},
        *(20, {"severity": "ticket", **STORE}),
    ),
    "IdempotentBacklogGrows": (
        {'idempotent_backlog_messages{consumer="orders:billing"}': "10+50x60"},
        *(40, {"severity": "ticket", **CONSUMER}),
    ),
    "IdempotentRanUnprotected": (
        {'idempotent_events_total{consumer="orders:billing", event="ran_disabled"}': "0x9 3x10"},
        *(12, {"severity": "ticket", **CONSUMER}),
    ),
    "IdempotentOutboxMessagesHeld": (
        {'idempotent_outbox_messages{outbox="outbox_tbl", state="held"}': "0 1x10"},
        *(5, {"severity": "page", **OUTBOX}),
    ),
    "IdempotentOutboxWaits": (
        {'idempotent_outbox_oldest_seconds{outbox="outbox_tbl"}': "0+60x10"},
        *(8, {"severity": "page", **OUTBOX}),
    ),
    "IdempotentKeysExpire": (
        {'idempotent_store_expired_keys{store="keys"}': "200000x300"},
        *(200, {"severity": "ticket", "store": "keys"}),
    ),
}
QUIET = {
    'idempotent_outcomes_total{consumer="orders:billing", outcome="processed"}': "0+600x60",
    'idempotent_outcomes_total{consumer="orders:billing", outcome="failed"}': "0+6x60",
    'idempotent_outcomes_total{consumer="orders:billing", outcome="dead"}': "0x60",
    'idempotent_outcomes_total{consumer="orders:billing", outcome="unavailable"}': "0x60",
    'idempotent_events_total{consumer="orders:billing", event="completion_lost"}': "0x60",
    'idempotent_events_total{consumer="orders:billing", event="ran_without_key"}': "0x60",
    'idempotent_lease_lost_total{consumer="orders:billing"}': "0x60",
    'idempotent_longest_running_seconds{consumer="orders:billing"}': "0.2x60",
    'idempotent_backlog_messages{consumer="orders:billing"}': "5 900 40 0 12 800 0 3x53",
    'idempotent_store_lapsed_claims{store="keys", consumer="orders:billing"}': "0 1 0x58",
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


def test_each_alert_fires_in_its_trouble_and_none_in_a_quiet_hour(promtool, tmp_path):
    # promtool compares annotations word by word, and here the labels are meant.
    rules = re.sub(r"(?m)^ +annotations:\n(?: {10,}\S.*\n)+", "", ALERTS.read_text())
    (tmp_path / "rules.yml").write_text(rules)
    fires = [
        unit(
            name,
            series,
            [{"eval_time": f"{minute}m", "alertname": name, "exp_alerts": [{"exp_labels": labels}]}],
        )
        for name, (series, minute, labels) in TROUBLES.items()
    ]
    silent = [
        {"eval_time": f"{minute}m", "alertname": name, "exp_alerts": []}
        for name in TROUBLES
        for minute in (5, 20, 59)
    ]
    tests = {
        "rule_files": ["rules.yml"],
        "evaluation_interval": "1m",
        "tests": [unit("a quiet hour", QUIET, silent), *fires],
    }
    (tmp_path / "tests.yml").write_text(json.dumps(tests))
    promtool("test", "rules", tmp_path / "tests.yml")


def test_the_rules_are_valid_and_each_is_tested_and_on_the_page(promtool):
    promtool("check", "rules", ALERTS)
    named = re.findall(r"(?m)^ +- alert: (\w+)$", ALERTS.read_text())
    assert named == list(TROUBLES)
    assert [name for name in named if f"`{name}`" not in PAGE.read_text()] == []


@pytest.mark.parametrize("name", TROUBLES)
def test_an_alert_says_what_happened_and_what_to_do(name):
    rule = ALERTS.read_text().partition(f"alert: {name}\n")[2].partition("- alert:")[0]
    assert "summary:" in rule
    assert "description:" in rule
