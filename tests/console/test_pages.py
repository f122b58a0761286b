"""What the console shows."""

from functools import partial

import pytest

from idempotent import Message, Registry
from idempotent.adapters.memory import MemoryAdapter
from idempotent.checkers import MemoryChecker
from idempotent.checkers.pauses import Pauses
from idempotent.errors import AdapterError
from idempotent.redrive import LetterFilter, drop
from tests.console.browser import ORDERS
from tests.console.conftest import KEYS


def test_a_person_goes_from_the_overview_to_a_letter(letters, browser):
    page = browser.open("/")
    assert page.status == 200
    assert "orders:billing not read yet 3" in page.text
    assert "orders:billing" in page.links
    page = browser.read()
    assert "ValueError: no customer of 1" in page.text or "ValueError: no customer of 2" in page.text
    assert "MissingKeyError" in page.text
    page = browser.group()
    assert {"orders:billing:1", "orders:billing:2"} <= page.links.keys()
    page = browser.item("orders:billing:2")
    for shown in ("colour red", "ValueError: no customer of 2", "3 bytes", "status dead", "attempts 1"):
        assert shown in page.text
    assert "two" not in page.text.split("Body")[1].split("Decide")[0], "the body only on request"


def test_a_body_is_shown_on_request_and_the_audit_names_who_asked(letters, browser):
    page = browser.press(browser.item("orders:billing:1"), "Show the body")
    assert '{"cents": 1}' in page.text
    assert "alice body orders:billing orders:billing:1 shown" in browser.open("/audit").text


def test_a_binary_body_is_shown_in_base64_and_a_large_one_is_downloaded(shop, browser):
    large = b"x" * 10_000_000
    shop.deliver(Message("orders", b"\xff\x00<script>", id="1"), Message("orders", large, id="2"))
    page = browser.press(browser.item("orders:billing:1"), "Show the body")
    assert "As base64" in page.text
    assert "/wA8c2NyaXB0Pg==" in page.text
    page = browser.item("orders:billing:2")
    assert "10,000,000 bytes" in page.text
    shown = browser.press(page, "Show the body")
    assert "the beginning" in shown.text
    assert len(shown.source) < 30_000
    (form,) = (each for each in page.forms if each.button == "Download the body")
    answer = browser.client.post(form.action, data=form.fields)
    assert answer.content == large
    assert answer.headers["content-type"] == "application/octet-stream"
    assert answer.headers["content-disposition"].startswith("attachment")


def test_keys_without_a_letter_have_groups_of_their_own(letters, browser):
    assert "Dead keys without a letter No such key." in browser.read().text
    adapter = MemoryAdapter(letters.broker)
    drop(letters.consumer, adapter, only=LetterFilter(names=frozenset({"3"})), note="by hand", idle_s=0.2)
    letters.deliver(Message("orders", id="4"))
    with pytest.raises(LookupError):
        letters.consumer(Message("orders", id="5", headers={"odd": "yes"}))
    page = browser.again()
    (path,) = (path for path in page.links.values() if "kind=keys" in path)
    page = browser.open(path)
    assert "orders:billing:5" in page.links
    assert "LookupError: no customer of 5" in page.text
    assert "orders:billing:4" not in page.text


def test_a_key_is_looked_up(letters, browser):
    letters.bad = False
    letters.deliver(Message("orders", id="9"))
    for name in ("9", "orders:billing:9", KEYS.key("9").hash.hex()):
        page = browser.look_up(name)
        assert (page.status, "status done" in page.text) == (200, True), name
        assert [form.action for form in page.forms] == ["/logout"], "nothing to decide"
    for name in ("10", "%ff", "a:b:%ff", "\x00"):
        page = browser.look_up(name)
        assert (page.status, "The store has no such key" in page.text) == (200, True), name


def test_what_is_not_there_is_not_found(letters, browser):
    for path in (
        "/nothing",
        "/consumer?desk=nobody",
        "/outbox?store=7",
        "/outbox?store=-1",
        "/static/app.py",
    ):
        assert browser.open(path).status == 404, path
    assert browser.open(f"/group?desk={ORDERS}").status == 409, "not read yet"
    browser.read()
    assert browser.open(f"/group?desk={ORDERS}&kind=others").status == 404
    assert browser.open(f"/item?desk={ORDERS}&id=nothing").status == 409
    assert browser.open(f"/proposal?desk={ORDERS}&id=nothing").status == 409


def test_a_head_is_answered_as_a_get(letters, browser):
    browser.read()
    for path in (
        "/",
        "/login",
        f"/consumer?desk={ORDERS}",
        f"/group?desk={ORDERS}",
        "/audit",
        "/nothing",
    ):
        assert browser.client.head(path).status_code == browser.client.get(path).status_code, path


def test_the_overview_tells_what_is_being_done_now_and_not_what_failed_before(shop, looking):
    """A broker that was away for one reading."""
    away = [True]

    class Away(MemoryAdapter):
        def open(self, consumers):
            if away:
                away.pop()
                raise AdapterError("no connection")
            super().open(consumers)

    browser = looking(registry=shop.registry, adapter=partial(Away, shop.broker))
    page = browser.read()
    assert "Failed: no connection (0 s ago)" in page.text, "its own page says what came of it, and when"
    assert "no connection" not in browser.open("/").text
    assert "Failed" not in browser.again().text


def test_the_overview_says_which_consumers_are_paused(shop, looking):
    other = shop.registry.consumer("orders", group="mail", checker=shop.checker)(lambda message: None)
    browser = looking(registry=shop.registry)
    assert "paused" not in browser.open("/").text
    Pauses(shop.checker).pause("orders:billing", by="anna", note="the bank is down")
    assert browser.open("/").text.count("paused 0 s ago by anna: the bank is down") == 1
    Pauses(shop.checker).pause(other.name, by="ben")
    assert "paused 0 s ago by ben" in browser.open("/").text
    Pauses(shop.checker).resume("orders:billing")
    Pauses(shop.checker).resume(other.name)
    assert "paused" not in browser.open("/").text, "by another process, and at once"


def test_the_audit_shows_what_other_consoles_write_into_the_same_file(letters, console):
    alice, bob = console().log_in("alice"), console("another").log_in("bob")
    assert "Nothing yet." in bob.open("/audit").text
    alice.press(alice.item("orders:billing:1"), "Show the body")
    assert "alice body orders:billing orders:billing:1 shown" in bob.open("/audit").text
    bob.press(bob.item("orders:billing:2"), "Show the body")
    assert [who in alice.open("/audit").text for who in ("alice body", "bob body")] == [True, True]


def test_the_script_finds_the_numbers_and_what_it_waits_for(letters, console):
    browser = console(idle_s=3.0).log_in()
    assert 'data-live="dead:orders:billing">3<' in browser.open("/").source
    page = browser.open(f"/consumer?desk={ORDERS}").source
    assert " data-busy>" in page
    assert 'data-live="said">reading' in page
    assert 'data-live="dead">3<' in page
    assert 'data-live="busy:orders:billing">reading' in browser.open("/").source
    page = browser.read().source
    assert " data-busy>" not in page
    assert 'data-live="said"><' in page, "where it finds what others begin to do"
    assert 'data-live="busy:orders:billing"><' in browser.open("/").source


def test_the_script_waits_for_no_store(looking):
    """The numbers are counted in the background; what else a store is asked, people wait for."""
    asked = []

    class Asked(MemoryChecker):
        def admin(self):
            asked.append(self)
            return super().admin()

    registry = Registry()
    registry.consumer("orders", group="billing", checker=Asked())(lambda message: None)
    browser = looking(registry=registry)
    browser.read()
    for path in ("/", f"/consumer?desk={ORDERS}"):
        for headers, times in (({}, 1), ({"x-poll": "1"}, 0)):
            asked.clear()
            assert browser.client.get(path, headers=headers).status_code == 200
            assert len(asked) == times, (path, headers)


def test_a_store_that_is_down_is_said_and_is_no_fault_of_the_console(letters, browser, tmp_path):
    browser.read()
    page = browser.group()
    (tmp_path / "keys.db").rename(tmp_path / "gone.db")
    (tmp_path / "keys.db").mkdir()
    letters.checker.store.close()
    shown = browser.open(page.links["orders:billing:1"])
    assert shown.status == 200
    assert "What the store has of the key is not known" in shown.text
    again = browser.again()
    assert "Failed:" in again.text
