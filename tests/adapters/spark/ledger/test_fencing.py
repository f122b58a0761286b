"""The rules of fenced runs, over random histories: right with all of them, and wrong without any one."""

import pytest

from tests.adapters.spark.ledger.fencing.history import History
from tests.adapters.spark.ledger.fencing.world import Rules

HISTORIES = 1500
FULL = [Rules(), Rules(publishes="once"), Rules(publishes="copies"), Rules(waits=False)]


@pytest.mark.parametrize("histories", [HISTORIES // 10, pytest.param(HISTORIES, marks=pytest.mark.slow)])
@pytest.mark.parametrize("rules", FULL, ids=lambda rules: f"{rules.publishes}, waits={rules.waits}")
def test_no_history_breaks_a_promise(rules, histories):
    broken = [seed for seed in range(histories) if History(seed, rules).play()]
    assert broken == []


@pytest.mark.parametrize(
    ("seed", "without"),
    [
        pytest.param(59, {"fences_prepare": False}, id="prepare without epoch"),
        pytest.param(76, {"own_folder": False}, id="one staging folder for all attempts"),
        pytest.param(5, {"frozen": False, "publishes": "once"}, id="PREPARED is evaluated again"),
        pytest.param(4, {"counts": "never"}, id="PREPARE does not count"),
        pytest.param(677, {"counts": "before"}, id="PREPARE counts in a step before"),
        pytest.param(17, {"marks": False}, id="claims of all attempts count"),
        pytest.param(3, {"frames": False, "counts": "never"}, id="claims without frame"),
        pytest.param(17, {"takes_stale": False}, id="a frame never changes hands"),
        pytest.param(68, {"manifest": False}, id="the folder is listed, not the manifest"),
        pytest.param(0, {"prepared": False, "publishes": "copies"}, id="no PREPARED"),
        pytest.param(0, {"keeps_prepared": False, "publishes": "copies"}, id="PREPARED is aborted"),
        pytest.param(0, {"publishes": "overwrite"}, id="delete, then write"),
    ],
)
def test_the_model_finds_what_is_wrong_without_a_rule(seed, without):
    """From the seed of the first history that is wrong, found by a longer search, and on: the model may change."""
    assert any(History(each, Rules(**without)).play() for each in range(seed, seed + HISTORIES))


@pytest.mark.slow
@pytest.mark.parametrize("without", [{"fences_claims": False}, {"atomic": False}, {"fences_commit": False}])
def test_marks_and_the_count_protect_what_these_rules_do_too(without):
    """They are kept: a driver that was fenced learns it at its next claim, and its commit stores no reference."""
    assert [seed for seed in range(HISTORIES) if History(seed, Rules(**without)).play()] == []
