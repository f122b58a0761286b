"""The benchmark's contenders over SQL do what they are measured for: each once, on each database."""

import pytest

from tests.bench import bare, checkers
from tests.bench.contest import Contender, contest


@pytest.fixture(params=["sqlite", "mysql", "postgres"])
def contenders(request: pytest.FixtureRequest) -> list[Contender]:
    match request.param:
        case "sqlite":
            url = f"sqlite:///{request.getfixturevalue('tmp_path')}/bench.db"
        case "mysql":
            url = request.getfixturevalue("private_mariadb")().url
        case _:
            url = request.getfixturevalue("private_postgres")().url
    every = [*checkers.sql("here", url), *bare.sql("here", url)]
    return [contender for contender in every if contender.threads == 1]


@pytest.mark.slow
def test_each_gets_through_its_messages(contenders: list[Contender]) -> None:
    figures = contest(contenders, rounds=1, seconds=0.0)
    assert {(figure.who, figure.batch) for figure in figures} == {
        (contender.who, contender.batch) for contender in contenders
    }
    assert all(len(figure.rounds_us) == 1 and figure.rounds_us[0] > 0 for figure in figures)
