"""docs/logging.md lists every event that the product logs, with its level."""

import re
from collections import defaultdict

from tests.project.log_events import ROOT, logged

_ROW = re.compile(r"^\| `(\w+)` \| ([a-z, ]+) \| \S", re.MULTILINE)


def test_every_event_has_a_constant_name() -> None:
    assert not [call.where for call in logged() if call.event is None]


def test_the_page_and_the_code_name_the_same_events_and_levels() -> None:
    page = (ROOT / "docs/logging.md").read_text()
    on_page = {event: set(levels.split(", ")) for event, levels in _ROW.findall(page)}
    in_code: defaultdict[str, set[str]] = defaultdict(set)
    for call in logged():
        event = str(call.event)
        in_code[event] |= on_page.get(event, set()) if call.level is None else {call.level}
    assert on_page == dict(in_code)
