"""The benchmark's contenders for functions and requests do what they are measured for: each once."""

import pytest

from idempotent.checkers import MemoryChecker
from tests.bench.contest import contest
from tests.bench.functions import contenders as functions


@pytest.mark.slow
def test_functions_and_consumers_get_through_their_messages() -> None:
    figures = contest(functions.functions("here", MemoryChecker), rounds=1, seconds=0.0)
    assert {figure.who for figure in figures} == {functions.FUNCTION, functions.CONSUMER}


@pytest.mark.slow
@pytest.mark.parametrize("server", ["private_mariadb", "private_postgres"])
def test_requests_are_answered(server: str, request: pytest.FixtureRequest) -> None:
    url = request.getfixturevalue(server)().url
    figures = contest(functions.requests("here", url), rounds=1, seconds=0.0)
    assert {figure.who for figure in figures} == {functions.MIDDLEWARE, functions.BY_HAND}
