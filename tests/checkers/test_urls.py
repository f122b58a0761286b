"""The options of a checker in its URL, beside those of the driver or client."""

from __future__ import annotations

import pytest

from idempotent import Registry
from idempotent.checkers import checker_from_url
from idempotent.checkers.urls import SCHEMES
from idempotent.errors import ConfigurationError


def test_options_of_the_checker_may_be_in_its_url(tmp_path):
    checker = checker_from_url(
        "redis://127.0.0.1:1/0?lease_s=5&socket_timeout=2&retention_s=60.5&prefix=a%26b:"
    )
    assert (checker.lease_s, checker.retention_s) == (5.0, 60.5)
    assert checker.store.names.prefix == b"a&b:"
    assert checker.store.client.connection_pool.connection_kwargs["socket_timeout"] == 2
    assert "lease_s" not in checker.store.client.connection_pool.connection_kwargs
    checker = checker_from_url(f"transactional+sqlite:///{tmp_path}/x.db?timeout=3&savepoints=yes&table=own")
    assert (checker.isolates, checker.store.table) == (True, "own")
    assert dict(checker.store.engine.url.query) == {"timeout": "3"}
    assert checker_from_url("memory://?lease_s=1&max_keys=5")._max_keys == 5
    assert checker_from_url("attempts://?retention_s=1").retention_s == 1
    assert checker_from_url("offsets+sqlite:///x.db?lock_timeout_s=2").lock_timeout_s == 2


def test_options_in_code_win_and_a_url_without_options_stays_as_it_is():
    assert checker_from_url("memory://?lease_s=1", lease_s=2).lease_s == 2
    checker = checker_from_url("sqlite:///x.db?timeout=3&cached_statements=7")
    assert dict(checker.store.engine.url.query) == {"timeout": "3", "cached_statements": "7"}


def test_a_registry_takes_them_too():
    assert Registry().checker("mail", "memory://?lease_s=7").lease_s == 7


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("redis://127.0.0.1:1?lease_s=soon", "'lease_s' must be of type float, not 'soon'"),
        ("redis://127.0.0.1:1?lease_s=inf", "lease_s must be positive seconds"),
        ("memory://?max_keys=1.5", "'max_keys' must be of type int"),
        ("memory://?leese_s=1", "known: dead_retention_s, lease_s, max_keys, retention_s"),
        ("transactional+sqlite:///x.db?strict=perhaps", "'strict' must be of type bool"),
        ("sqlite:///x.db?table=a;b", "invalid table name"),
    ],
)
def test_a_value_that_does_not_fit_is_refused(url, said):
    with pytest.raises(ConfigurationError, match=said):
        checker_from_url(url)


@pytest.mark.parametrize("scheme", SCHEMES, ids=lambda scheme: scheme.start)
def test_a_scheme_says_what_its_checker_remembers(scheme):
    assert scheme.checker_class().remembers is scheme.remembers


@pytest.mark.parametrize("scheme", SCHEMES, ids=lambda scheme: scheme.start)
def test_every_checker_takes_its_retention_in_its_url(scheme, tmp_path):
    place = "sqlite:///x.db" if scheme.start.endswith("+") else "127.0.0.1:1"
    place = "" if scheme.start in {"memory://", "attempts://"} else place
    if scheme.start == "unix://":
        place = str(tmp_path)
    assert checker_from_url(f"{scheme.start}{place}?retention_s=61").retention_s == 61
