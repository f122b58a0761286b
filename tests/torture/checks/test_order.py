"""Which messages of a partition may take effect after later ones."""

from __future__ import annotations

import pytest

from idempotent.message import Position
from tests.torture import Servers, Settings, TortureRun

# A proxy stands before one server, so none is made; a run connects to nothing before it begins.
BROKER = "kafka://127.0.0.1:1,127.0.0.1:2"
EXACTLY_ONCE = (f"{BROKER}?semantics=exactly_once", "attempts://")
ONE_AT_A_TIME, IN_GROUPS = "0.1", "2.1"


def out_of_order(servers: tuple[str, str], process: str, what: str, folder) -> list[str]:
    """What is reported about a message that failed, or waited, and took effect after its successor."""
    broker, checker = (url.format(folder=folder) for url in servers)
    run = TortureRun(Settings(seed=1), Servers(broker, checker), "torture_order", folder)
    first, second = (str(Position("t", 0, offset, offset, 0)) for offset in (7, 8))
    about = {"process": process, "attempt": 1, "fence": 1, "wall": 0.0, "outcome": "failed"}
    run.record.read({"what": what, "id": "m-7", "position": first, "at": 1.0, **about})
    run.record.read({"what": "effect", "id": "m-8", "position": second, "at": 2.0, **about})
    run.record.read({"what": "effect", "id": "m-7", "position": first, "at": 3.0, **about})
    return list(run.report().findings.out_of_order)


LATE = ["t/0/7/0"]
KEYS, OFFSETS = (BROKER, "sqlite:///{folder}/x.db"), (BROKER, "offsets+sqlite:///{folder}/x.db")


@pytest.mark.parametrize("what", ["raised", "held", "settled"])
@pytest.mark.parametrize(
    ("servers", "process", "expected"),
    [
        pytest.param(KEYS, IN_GROUPS, [], id="a group known by its keys goes on"),
        pytest.param(KEYS, ONE_AT_A_TIME, LATE, id="one at a time is in order"),
        pytest.param(OFFSETS, IN_GROUPS, LATE, id="no offset passes another"),
        pytest.param(OFFSETS, ONE_AT_A_TIME, LATE, id="not even alone"),
        pytest.param(EXACTLY_ONCE, IN_GROUPS, [], id="handlers of a transaction of outputs go on"),
        pytest.param(EXACTLY_ONCE, ONE_AT_A_TIME, LATE, id="one output at a time is in order"),
    ],
)
def test_a_failed_message_may_be_late_where_its_group_goes_on(servers, process, expected, what, tmp_path):
    assert out_of_order(servers, process, what, tmp_path) == expected
