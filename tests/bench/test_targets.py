"""A run of the benchmark fails when a target does, unless it is known why."""

from __future__ import annotations

import pytest

from tests.bench.__main__ import main
from tests.bench.figures import Figure, What
from tests.bench.parts import Part
from tests.bench.targets import UNREACHED, targets


def of(ours: Figure, base: Figure) -> Part:
    def measure(figures, *_):
        figures.all += [ours, base]

    return measure


def figure(where: str, who: str, message_us: float, batch: int = 1) -> Figure:
    return Figure(where, who, What.FRESH, batch, 1, (message_us,), message_us, message_us, 0.0)


@pytest.fixture
def parts(monkeypatch):
    """Parts that measure nothing: one that passes, one that fails, and one of which it is known why."""
    savepoints = "TransactionalSqlChecker, savepoints"
    monkeypatch.setattr(
        "tests.bench.__main__.PARTS",
        {
            "good": of(figure("Memory", "MemoryChecker", 9), figure("Memory", "by hand", 1)),
            "bad": of(figure("Memory", "MemoryChecker", 99), figure("Memory", "by hand", 1)),
            "known": of(
                figure("MariaDB", savepoints, 99, batch=200),
                figure("MariaDB", "TransactionalSqlChecker", 100),
            ),
        },
    )


@pytest.mark.usefixtures("parts")
def test_a_target_that_fails_fails_the_run(tmp_path) -> None:
    with pytest.raises(SystemExit, match="decorated call with MemoryChecker"):
        main(only="bad,known", into=tmp_path)
    assert "FAIL" in (tmp_path / "report.md").read_text()


@pytest.mark.usefixtures("parts")
def test_a_target_of_which_it_is_known_why_does_not_fail_the_run(tmp_path) -> None:
    main(only="good,known", into=tmp_path)
    assert "FAIL" in (tmp_path / "report.md").read_text()


def test_what_is_known_to_be_unreached_is_a_target() -> None:
    assert set(UNREACHED) <= {target.what for target in targets()}
