"""What a person decides in the console."""

import json
import resource
import threading
import time
from functools import partial

import pytest

from idempotent import Message, Worker
from idempotent.adapters.memory import MemoryAdapter
from idempotent.admin import PAUSES
from idempotent.checkers import SqlChecker
from idempotent.checkers.pauses import Pauses, pause_of
from idempotent.claims import ClaimRequest, Failure
from idempotent.console.audit import Audit, AuditError
from idempotent.errors import ConfigurationError
from idempotent.keys import KeySpace
from tests.console.browser import ORDERS
from tests.console.conftest import KEYS


def test_a_group_is_redriven_after_a_rehearsal_and_runs(letters, browser):
    proposal = browser.propose(browser.group(), "redrive", all="1")
    assert (
        "Of 2 letters, 2 messages would be returned to the queue and run, with 2 dead keys reopened"
        in proposal.text
    )
    assert letters.left == ["1", "2", "3", "None"], "nothing was changed yet"
    browser.press(proposal, "Redrive", rate="50", note="OPS-1")
    page = browser.read()
    assert "2 messages returned, 2 keys reopened." in page.text
    assert "ValueError" not in page.text, "the letters were read again"
    assert letters.left == ["3", "None"]
    letters.bad = False
    letters.deliver()
    assert sorted(letters.done) == ["1", "2"]
    assert "redrive orders:billing orders:billing:" in browser.open("/audit").text
    assert "OPS-1 2 messages returned, 2 keys reopened." in browser.open("/audit").text


def test_a_selection_and_one_letter_are_redriven(letters, browser):
    page = browser.group()
    place = page.links["orders:billing:2"].rpartition("id=")[2]
    proposal = browser.propose(page, "redrive", place)
    assert "Of 1 letter, 1 message would be returned" in proposal.text
    browser.press(proposal, "Redrive")
    browser.read()
    assert letters.left == ["1", "3", "None"]
    browser.again()
    proposal = browser.press(browser.item("orders:billing:1"), "Redrive: return it to the queue")
    browser.press(proposal, "Redrive")
    browser.read()
    assert letters.left == ["3", "None"]


def test_a_letter_is_dropped_with_a_note_that_the_log_has(letters, browser, caplog):
    proposal = browser.press(browser.item("orders:billing:1"), "Drop: it never runs")
    assert browser.press(proposal, "Drop for ever", note=" ").status == 400
    assert letters.left == ["1", "2", "3", "None"]
    browser.press(proposal, "Drop for ever", note="test data")
    assert "1 letter dropped." in browser.read().text
    assert letters.left == ["2", "3", "None"]
    assert letters.status("1") == "DONE"
    dropped, action = (
        next(record for record in caplog.records if getattr(record, "event", "") == event)
        for event in ("letter_dropped", "console_action")
    )
    assert dropped.note == "test data (alice)"
    assert (action.who, action.action, action.note, action.result) == (
        "alice",
        "drop",
        "test data",
        "1 letter dropped.",
    )
    assert "two" not in caplog.text, "bodies stay out of the log"


@pytest.mark.parametrize(
    ("button", "confirm", "status"), [("Retry", "Reopen", None), ("Done", "Mark as done", "DONE")]
)
def test_a_key_is_resolved(letters, browser, button, confirm, status):
    page = browser.item("orders:billing:1")
    (full,) = (form.button for form in page.forms if form.button.startswith(button))
    proposal = browser.press(page, full)
    browser.press(proposal, confirm, note="I looked")
    browser.read()
    assert letters.status("1") == status
    assert letters.left == ["1", "2", "3", "None"], "the letter stays"


@pytest.mark.parametrize("of", ["another consumer", "the library"])
def test_a_key_of_others_is_neither_shown_nor_resolved(letters, browser, of):
    """Looked up by its text or its hash, or in a form of somebody who wrote it himself."""
    if of == "the library":
        Pauses(letters.checker).pause("orders:billing", by="anna")
        key = PAUSES.key("orders:billing")
    else:
        key = KeySpace("orders", "mail").key("1")
        claim = letters.checker.protocol.claim(ClaimRequest(key)).claim
        letters.checker.protocol.release(claim, Failure("ValueError: x", 1, fatal=True))
    then = letters.checker.admin().get(key).state
    for name in (str(key), key.hash.hex()):
        page = browser.look_up(name)
        assert (page.status, f"{key} is no key of orders:billing" in page.text) == (404, True)
    (form,) = (
        each for each in browser.item("orders:billing:1").forms if each.fields.get("action") == ["done"]
    )
    assert browser.send(form, seen=then).status == 404
    assert letters.checker.admin().get(key).state == then


def test_a_lapsed_claim_is_shown_and_resolved(shop, browser):
    brief = SqlChecker(shop.checker.store.engine, lease_s=0.01)
    brief.protocol.abandon(brief.protocol.claim(ClaimRequest(KEYS.key("7"))).claim)
    brief.close()
    page = browser.read()
    assert "1 lapsed claim" in page.links
    page = browser.open(page.links["1 lapsed claim"])
    assert "in_progress ended" in page.text
    item = browser.open(page.links["orders:billing:7"])
    assert "the next delivery runs" not in item.text
    proposal = browser.press(item, "Done: its effect happened")
    browser.press(proposal, "Mark as done", note="the bank says so")
    assert "1 key marked done." in browser.read().text
    assert shop.status("7") == "DONE"


def test_of_two_people_who_resolve_a_key_the_second_is_told(letters, console):
    alice, bob = console().log_in("alice"), console().log_in("bob")
    pages = [each.item("orders:billing:1") for each in (alice, bob, bob)]
    first = alice.press(pages[0], "Done: its effect happened")
    second = bob.press(pages[1], "Retry: its next delivery runs")
    alice.press(first, "Mark as done", note="it did")
    assert "1 key marked done." in alice.read().text
    bob.press(second, "Reopen", note="it did not")
    assert "0 keys reopened. 1 left alone because it has changed" in bob.read().text
    assert letters.status("1") == "DONE"
    assert bob.press(pages[2], "Retry: its next delivery runs").status == 409
    assert "status done" in bob.item("orders:billing:1").text


@pytest.mark.parametrize("where", ["the same console", "another console"])
def test_of_two_people_who_redrive_a_letter_the_second_is_told(letters, console, where):
    alice, bob = console().log_in("alice"), console(where).log_in("bob")
    first, second = (
        each.press(each.item("orders:billing:1"), "Redrive: return it to the queue") for each in (alice, bob)
    )
    alice.press(first, "Redrive")
    alice.read()
    bob.press(second, "Redrive")
    assert "0 messages returned, 0 keys reopened. 1 letter gone" in bob.read().text
    letters.bad = False
    letters.deliver()
    assert letters.done == ["1"]


def resolved(admin, key):
    assert admin.mark_done(admin.get(key))


def reopened(admin, key):
    assert admin.reopen(admin.get(key))


@pytest.mark.parametrize("change", [resolved, reopened], ids=["resolved", "reopened"])
@pytest.mark.parametrize(
    ("button", "confirm", "nothing"),
    [
        ("Redrive: return it to the queue", "Redrive", "0 messages returned"),
        ("Drop: it never runs", "Drop for ever", "0 letters dropped."),
        ("Retry: its next delivery runs", "Reopen", "0 keys reopened."),
        ("Done: its effect happened", "Mark as done", "0 keys marked done."),
    ],
    ids=["redrive", "drop", "retry", "done"],
)
def test_what_was_proposed_of_a_key_that_changed_meanwhile_is_refused(
    letters, browser, change, button, confirm, nothing
):
    proposal = browser.press(browser.item("orders:billing:1"), button)
    change(letters.checker.admin(), KEYS.key("1"))
    then = letters.status("1")
    browser.press(proposal, confirm, note="I looked")
    page = browser.read()
    assert nothing in page.text
    assert "1 left alone because it has changed since it was shown or read: orders:billing:1" in page.text
    assert letters.status("1") == then
    assert letters.left == ["1", "2", "3", "None"]


def test_a_rehearsal_names_what_has_changed(letters, browser):
    page = browser.group()
    resolved(letters.checker.admin(), KEYS.key("1"))
    proposal = browser.propose(page, "redrive", all="1")
    assert "Of 2 letters, 1 message would be returned" in proposal.text
    assert (
        "1 left alone because it has changed since it was shown or read: orders:billing:1." in proposal.text
    )


def test_a_proposal_is_confirmed_once(letters, browser):
    proposal = browser.propose(browser.group(), "drop", all="1")
    browser.press(proposal, "Drop for ever", note="once")
    browser.read()
    again = browser.press(proposal, "Drop for ever", note="twice")
    assert again.status == 409
    assert "confirmed already" in again.text


def test_what_died_since_the_reading_is_not_touched(letters, browser):
    page = browser.group()
    letters.deliver(Message("orders", b"four", id="4"))
    proposal = browser.propose(page, "drop", all="1")
    browser.press(proposal, "Drop for ever", note="the old ones")
    browser.read()
    assert letters.left == ["3", "4", "None"]


def test_a_letter_that_ran_and_died_again_is_not_returned_once_more(letters, browser):
    proposal = browser.propose(browser.group(), "redrive", all="1")
    other = browser.propose(browser.group(), "redrive", all="1")
    browser.press(proposal, "Redrive")
    browser.read()
    letters.deliver()
    assert letters.left == ["1", "2", "3", "None"]
    browser.press(other, "Redrive")
    assert "0 messages returned" in browser.read().text
    assert letters.left == ["1", "2", "3", "None"]


def test_a_choice_of_an_old_reading_is_refused(letters, browser):
    page = browser.group()
    browser.again()
    assert browser.propose(page, "drop", all="1").status == 200, "somebody else may have read them"
    for _ in range(2):
        browser.again()
    answer = browser.propose(page, "drop", all="1")
    assert answer.status == 409
    assert "Look again" in answer.text
    assert browser.propose(browser.group(), "drop").status == 409, "nothing was chosen"


def test_one_reading_at_a_time(shop, console):
    shop.deliver(*(Message("orders", id=str(number)) for number in range(5)))
    alice, bob = console(idle_s=1.0).log_in("alice"), console(idle_s=1.0).log_in("bob")
    page = alice.open(f"/consumer?desk={ORDERS}")
    assert "reading" in page.text
    (form,) = (each for each in alice.settled(f"/consumer?desk={ORDERS}").forms if "Read" in each.button)
    assert alice.client.post(form.action, data=form.fields).status_code == 303
    (other,) = (each for each in bob.open("/").forms if each.button == "Log out")
    busy = bob.client.post(form.action, data={**form.fields, **other.fields})
    assert busy.status_code == 409
    assert "already" in busy.text
    assert bob.read().status == 200


def test_a_redrive_with_a_rate_is_stopped(shop, browser):
    shop.deliver(*(Message("orders", id=str(number)) for number in range(40)))
    browser.press(browser.propose(browser.group(), "redrive", all="1"), "Redrive", rate="5")
    page = browser.open(f"/consumer?desk={ORDERS}")
    browser.press(page, "Stop")
    assert "Stopped after" in browser.read().text
    assert 0 < len(shop.left) < 40
    assert "alice stop" in browser.open("/audit").text
    shop.bad = False
    shop.deliver()
    assert len(shop.done) == 40 - len(shop.left)


def test_a_body_whose_reading_somebody_stops_is_not_said_to_be_gone(letters, looking):
    meanwhile = []

    class Watched(MemoryAdapter):
        def open(self, consumers):
            super().open(consumers)
            while meanwhile:
                meanwhile.pop()()

    browser = looking(registry=letters.registry, adapter=partial(Watched, letters.broker))
    item = browser.item("orders:billing:3")
    meanwhile.append(lambda: browser.press(browser.open(f"/consumer?desk={ORDERS}"), "Stop"))
    page = browser.press(item, "Show the body")
    assert (page.status, "Stopped after 0." in page.text) == (409, True)
    assert "three" in browser.press(item, "Show the body").text


def test_the_end_of_the_console_ends_a_redrive_and_the_audit_says_how_far_it_came(shop, console):
    shop.deliver(*(Message("orders", id=str(number)) for number in range(40)))
    browser = console().log_in()
    browser.press(browser.propose(browser.group(), "redrive", all="1"), "Redrive", rate="5")
    (made,) = console.consoles.values()
    made.close()
    returned = 40 - len(shop.left)
    assert 0 < returned < 40
    assert f"Stopped after {returned}." in browser.open("/audit").text


@pytest.mark.parametrize("mended", [True, False], ids=["mended", "not mended"])
def test_the_first_letters_of_a_redrive_decide_about_the_others(letters, browser, mended):
    letters.bad = not mended
    proposal = browser.propose(browser.group(), "redrive", all="1")
    worker = Worker(letters.registry, MemoryAdapter(letters.broker))
    working = threading.Thread(target=worker.run)
    working.start()
    try:
        browser.press(proposal, "Redrive", canary="1")
        page = browser.read()
    finally:
        worker.stop()
        working.join()
    if mended:
        assert "2 messages returned, 2 keys reopened." in page.text
        assert letters.left == ["3", "None"]
    else:
        assert (
            "1 message returned, 1 key reopened. Stopped after the first ones: 1 of 1 died again" in page.text
        )
        assert "gone" not in page.text
        assert letters.left == ["1", "2", "3", "None"]


def test_a_rate_that_is_none_is_refused(letters, browser):
    proposal = browser.propose(browser.group(), "redrive", all="1")
    for rate in ("fast", "-1", "0", "nan", "inf"):
        assert browser.press(proposal, "Redrive", rate=rate).status == 400, rate
        assert browser.press(proposal, "Redrive", canary=rate).status == 400, rate
    assert browser.press(proposal, "Redrive", rate="").status == 200


def test_a_database_that_takes_no_writes_is_said_and_the_pages_stay(letters, browser):
    browser.read()
    item = browser.item("orders:billing:1")
    proposal = browser.press(item, "Done: its effect happened")
    engine = letters.checker.store.engine
    with engine.begin() as connection:
        connection.exec_driver_sql(
            "CREATE TRIGGER no_writes BEFORE UPDATE ON deduplicate_tbl BEGIN SELECT RAISE(ABORT, 'read only'); END"
        )
    browser.press(proposal, "Mark as done", note="I looked")
    page = browser.read()
    assert "Failed:" in page.text
    assert "read only" in page.text
    assert browser.open("/").status == 200
    assert letters.status("1") == "DEAD"
    assert "Failed:" in browser.open("/audit").text


def test_the_audit_file_has_a_line_before_each_action_and_one_after(letters, browser, tmp_path):
    browser.press(browser.item("orders:billing:1"), "Show the body")
    begun, ended = (json.loads(line) for line in (tmp_path / "audit.jsonl").read_text().splitlines())
    assert (begun["result"], ended["result"]) == (None, "shown")
    assert {**begun, "result": "shown"} == ended
    assert (ended["who"], ended["action"], ended["what"]) == ("alice", "body", ["orders:billing:1"])
    assert oct((tmp_path / "audit.jsonl").stat().st_mode)[-2:] in ("00", "44")
    (entry,) = Audit(tmp_path / "audit.jsonl").latest()
    assert entry["result"] == "shown", "another console reads it"


def test_of_a_large_audit_file_the_end_is_read(tmp_path):
    path = tmp_path / "audit.jsonl"
    with path.open("w") as file:
        for number in range(100_000):
            file.write(json.dumps({"id": str(number), "who": "bob", "note": "x" * 100}) + "\n")
    began = time.monotonic()
    found = Audit(path).latest()
    assert time.monotonic() - began < 60
    assert [entry["id"] for entry in found[:2]] == ["99999", "99998"]
    assert len(found) == 1000


def test_without_the_audit_nothing_is_changed(letters, browser, tmp_path):
    proposal = browser.propose(browser.group(), "drop", all="1")
    (tmp_path / "audit.jsonl").unlink()
    (tmp_path / "audit.jsonl").mkdir()
    answer = browser.press(proposal, "Drop for ever", note="why")
    assert answer.status == 503
    assert "cannot be written" in answer.text
    assert letters.left == ["1", "2", "3", "None"]
    with pytest.raises(ConfigurationError, match="cannot be written"):
        Audit(tmp_path)


@pytest.mark.parametrize("length", [1, 300], ids=["short", "longer than a buffer"])
def test_a_line_that_a_full_disk_cuts_is_refused_and_takes_no_other_with_it(tmp_path, length):
    audit, done = Audit(tmp_path / "audit.jsonl"), []
    with audit.noted("alice", "drop", "orders:billing", ["1"]) as end:
        end("1 letter dropped.")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (audit.path.stat().st_size + 50, before[1]))
    try:
        with (
            pytest.raises(AuditError, match="cannot be written"),
            audit.noted("bob", "drop", "orders:billing", ["\u20ac" * length] * 20),
        ):
            done.append("dropped")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert done == []
    with audit.noted("carol", "drop", "orders:billing", ["2"]) as end:
        end("1 letter dropped.")
    assert [entry["who"] for entry in audit.latest()] == ["carol", "alice"]


def test_an_old_audit_file_with_half_a_line_and_foreign_ones_is_read(tmp_path):
    path = tmp_path / "audit.jsonl"
    path.write_text('lf a line"}\n{"id": "1", "who": "bob"}\n[]\n3\n{"no": "id"}\n')
    with path.open("a") as file:
        for odd in ('"what": null', '"count": "3"', '"who": 1'):
            file.write(f'{{"id": "2", {odd}}}\n')
    assert [entry["who"] for entry in Audit(path).latest()] == ["bob"]


def test_a_letter_that_a_worker_runs_meanwhile_is_left_alone(letters, browser):
    """Redriven by somebody else: its key is claimed by a worker that runs it."""
    proposal = browser.press(browser.item("orders:billing:1"), "Retry: its next delivery runs")
    admin = letters.checker.admin()
    assert admin.reopen(admin.get(KEYS.key("1")))
    letters.bad = False
    letters.broker.publish(Message("orders", id="1"))
    Worker(letters.registry, MemoryAdapter(letters.broker, until_empty=True)).run()
    browser.press(proposal, "Reopen", note="why")
    assert "0 keys reopened" in browser.read().text
    assert letters.status("1") == "DONE"


def test_a_consumer_is_paused_and_resumed(shop, browser):
    assert browser.press(browser.read(), "Pause", note=" ").status == 400
    browser.press(browser.read(), "Pause", note="the bank is down")
    page = browser.read()
    assert "by alice: the bank is down" in page.text
    found = pause_of(shop.checker, "orders:billing")
    assert (found.by, found.note) == ("alice", "the bank is down")
    browser.press(page, "Resume")
    assert "Paused since" not in browser.read().text
    assert pause_of(shop.checker, "orders:billing") is None
    assert "pause orders:billing" in browser.open("/audit").text
