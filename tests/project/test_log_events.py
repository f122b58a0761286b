"""docs/reference/logging.md lists every event that the product logs, with its levels and its fields."""

import re
from collections import defaultdict

import pytest

from tests.project.log_events import ROOT, logged

_ROW = re.compile(r"^\| `(\w+)` \| ([a-z, ]+) \| (-|`.+?`) \| \S", re.MULTILINE)


Rows = list[tuple[str, str, str]]
# Said when a consumer is made, and about all messages of a transaction.
_ABOUT_CONSUMERS = {"handler_outside_transaction", "transaction_undone"}


@pytest.fixture
def rows() -> Rows:
    return _ROW.findall((ROOT / "docs/reference/logging.md").read_text())


def test_every_module_logs_through_an_event_log() -> None:
    files = {call.where.rpartition(":")[0] for call in logged()}
    assert len(files) > 50
    assert not [name for name in files if "log = EventLog(__name__)" not in (ROOT / name).read_text()]


@pytest.mark.slow
def test_every_event_has_a_constant_name() -> None:
    assert not [call.where for call in logged() if call.event is None]


def test_the_page_and_the_code_name_the_same_events_and_levels(rows: Rows) -> None:
    on_page = {event: set(levels.split(", ")) for event, levels, _ in rows}
    in_code: defaultdict[str, set[str]] = defaultdict(set)
    for call in logged():
        event = str(call.event)
        in_code[event] |= on_page.get(event, set()) if call.level is None else {call.level}
    assert on_page == dict(in_code)


def test_the_page_and_the_code_name_the_same_fields(rows: Rows) -> None:
    in_code: defaultdict[str, set[str]] = defaultdict(set)
    for call in logged():
        in_code[str(call.event)] |= call.fields
    assert {event: set(re.findall(r"`(.+?)`", fields)) for event, _, fields in rows} == dict(in_code)


def test_a_line_about_a_message_says_which_one() -> None:
    lines = [call for call in logged() if "processing/" in call.where and call.event not in _ABOUT_CONSUMERS]
    assert lines
    assert not [
        call.where for call in lines if not call.fields >= {"consumer", "key", "message_id", "position"}
    ]
