"""`idempotent web`: what it refuses to start with, and one of its own process."""

import re
import signal
import socket
import subprocess

import httpx2
import pytest

from idempotent.claims import KeyStatus
from tests.cli.support import BILLING, dead
from tests.cli.test_replay import command, shop
from tests.console.browser import Browser

__all__ = ["shop"]
DEADLINE_S = 60


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ([], "give the MODULE"),
        (["shop_consumers", "--url", "sqlite:///app.db"], "give the MODULE"),
        (["shop_consumers", "--table", "keys"], "--table and --prefix go with --url"),
        (["--url", "sqlite:///app.db", "--host", "0.0.0.0"], "is seen by other machines"),
        (["--url", "sqlite:///app.db", "--host", "192.0.2.1"], "is seen by other machines"),
        (["--url", "sqlite:///app.db", "--token-file", "short"], "at least 16"),
        (
            ["--url", "sqlite:///app.db", "--token-file", "long", "--user-header", "x-user"],
            "who logs people in",
        ),
        (["--url", "sqlite:///app.db", "--audit-file", "nowhere/audit.jsonl"], "cannot be written"),
        (["--url", "sqlite:///none.db"], "does not exist"),
    ],
    ids=str,
)
def test_what_is_not_safe_or_not_there_is_refused(cli, shop, words, why):
    (shop / "short").write_text("xyzzy\n")
    (shop / "long").write_text("a-token-that-is-long-enough\n")
    answer = cli("web", *words)
    assert answer.code in (2, 3, 4)
    assert why in " ".join(answer.err.split())
    assert "xyzzy" not in answer.err


def test_a_port_that_another_program_has_is_named_before_any_address_is_said(cli, sqlite_store):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        answer = cli("web", "--url", sqlite_store.url, "--table", sqlite_store.table, "--port", str(port))
    assert answer.code == 3
    assert f"cannot listen on 127.0.0.1, port {port}" in " ".join(answer.err.split())
    assert "The console is at" not in answer.err


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.mark.slow
@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGINT])
def test_it_prints_where_to_log_in_resolves_a_key_and_ends(sqlite_store, project, stop):
    dead(sqlite_store, BILLING.key("4711"))
    port = free_port()
    words = ("web", "--url", sqlite_store.url, "--table", sqlite_store.table, "--port", str(port))
    with command(*words, stderr=subprocess.PIPE, text=True) as process:
        try:
            said = process.stderr.readline()
            address, token = re.search(r"(http://127\.0\.0\.1:\d+)/login\?token=(\S+)", said).groups()
            transport = httpx2.HTTPTransport(retries=20)
            with httpx2.Client(base_url=address, transport=transport, timeout=DEADLINE_S) as client:
                browser = Browser(client).log_in("alice", token)
                page = browser.open("/")
                assert "orders.paid:billing" in page.links
                consumer = page.links["orders.paid:billing"]
                page = browser.settled(consumer)
                (path,) = (path for path in page.links.values() if "kind=keys" in path)
                item = browser.open(browser.open(path).links["orders.paid:billing:4711"])
                proposal = browser.press(item, "Done: its effect happened")
                browser.press(proposal, "Mark as done", note="I looked")
                assert "1 key marked done." in browser.settled(consumer).text
            process.send_signal(stop)
            assert process.wait(DEADLINE_S) == 0
            more = process.stderr.read()
        finally:
            process.kill()
    assert "console_action" in more
    assert token not in more
    assert sqlite_store.leased().admin().get(BILLING.key("4711")).status is KeyStatus.DONE
