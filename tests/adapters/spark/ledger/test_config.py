"""StoreConfig: plain data that names a store and hides its password."""

import pickle

import pytest

from idempotent.adapters.spark.ledger import StoreConfig, open_ledger
from idempotent.errors import ConfigurationError


class TestConfig:
    def test_is_plain_data(self):
        config = StoreConfig("redis://:secret@host:6379/0", prefix="a:")
        assert pickle.loads(pickle.dumps(config)) == config
        assert hash(config) == hash(StoreConfig("redis://:secret@host:6379/0", prefix="a:"))

    @pytest.mark.parametrize(
        "url",
        [
            "mysql+pymysql://user:secret@host/db",
            "redis://:secret@host:6379/0",
            "rediss://user:secret@host:6379/0",
            "redis://host/0?password=secret",
            "postgresql+psycopg://host/db?user=a&password=secret",
        ],
    )
    def test_does_not_show_the_password(self, url):
        config = StoreConfig(url)
        assert "secret" not in repr(config)
        assert "secret" not in config.where
        assert "host" in repr(config)

    @pytest.mark.parametrize(
        "options",
        [
            {"url": "nowhere"},
            {"url": "sqlite:///a.db", "table": "a;b"},
            {"url": "redis://host", "prefix": "a{b}"},
            {"url": "redis://host", "retention_s": 0},
            {"url": "redis://host", "retention_s": float("nan")},
        ],
    )
    def test_what_cannot_work_is_refused(self, options):
        with pytest.raises(ConfigurationError):
            StoreConfig(**options)

    @pytest.mark.parametrize("scheme", ["postgresql+psycopg", "mysql+pymysql", "redis"])
    def test_a_password_that_would_be_taken_for_the_host_is_refused_and_not_shown(self, scheme):
        with pytest.raises(ConfigurationError, match="%40") as refused:
            StoreConfig(f"{scheme}://user:not@secret@host/0")
        assert "secret" not in str(refused.value)

    @pytest.mark.parametrize("url", ["oracle://host/db", "sqlite://"])
    def test_an_unsupported_database_is_refused(self, url):
        with pytest.raises(ConfigurationError):
            open_ledger(StoreConfig(url))


def test_an_sqlite_file_is_the_same_in_every_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert StoreConfig("sqlite:///runs.db?timeout=60").url == f"sqlite:///{tmp_path}/runs.db?timeout=60"
    assert StoreConfig("sqlite:////data/runs.db").url == "sqlite:////data/runs.db"
    assert StoreConfig("mysql://u:p@host/db").url == "mysql://u:p@host/db"
