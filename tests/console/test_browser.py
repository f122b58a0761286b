"""The console in Chromium: with a keyboard, for screen readers, with and without JavaScript."""

import threading
from functools import partial

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect

from idempotent import Message
from idempotent.adapters.memory import MemoryAdapter
from idempotent.claims import ClaimRequest
from tests.console.conftest import KEYS
from tests.console.served import CHROMIUM, DEADLINE_S, chromium, log_in, served

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="needs chromium: .ci/debian-packages servers"),
]
RULES = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]}


@pytest.fixture
def address(letters):
    claim = letters.checker.protocol.claim(ClaimRequest(KEYS.key("7"))).claim
    letters.checker.protocol.abandon(claim)
    adapter = partial(MemoryAdapter, letters.broker)
    with served(registry=letters.registry, adapter=adapter, idle_s=0.2) as where:
        yield where


def violations(page):
    found = Axe().run(page, options=RULES).response["violations"]
    return [(each["id"], each["help"], [node["html"] for node in each["nodes"]]) for each in found]


def follow(page, name):
    with page.expect_navigation():
        page.get_by_role("link", name=name).first.press("Enter")


def press(page, name):
    with page.expect_navigation():
        page.get_by_role("button", name=name).first.press("Enter")


def test_each_page_is_usable_with_a_keyboard_and_a_screen_reader(address, letters):
    said = []
    with chromium() as page:
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.goto(f"{address}/login")
        assert violations(page) == []
        log_in(page, address)
        assert violations(page) == []
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
        follow(page, "orders:billing")
        page.get_by_role("heading", name="Dead letters", exact=True).wait_for()
        assert violations(page) == []
        page.get_by_role("row", name="ValueError").get_by_role("link").click()
        assert violations(page) == []
        follow(page, "orders:billing:1")
        press(page, "Show the body")
        page.get_by_text('{"cents": 1}').wait_for()
        assert violations(page) == []
        page.go_back()
        page.go_back()
        page.get_by_label("Choose orders:billing:2").focus()
        page.keyboard.press("Space")
        page.get_by_label("Redrive: return to the queue").focus()
        page.keyboard.press("Space")
        press(page, "Go on")
        page.get_by_role("button", name="Redrive").wait_for()
        assert violations(page) == []
        page.get_by_label("Why").focus()
        page.keyboard.type("OPS-1")
        page.keyboard.press("Enter")
        page.get_by_text("1 message returned, 1 key reopened.").wait_for()
        follow(page, "Audit")
        page.get_by_role("cell", name="OPS-1").wait_for()
        assert violations(page) == []
        page.goto(f"{address}/outbox?store=0")
        assert violations(page) == []
        page.goto(f"{address}/nothing")
        assert violations(page) == []
    assert [text for text in said if "404" not in text] == [], "nothing is refused by the policy"
    assert letters.left == ["1", "3", "None"]


def test_numbers_and_jobs_are_kept_current(address, letters):
    with chromium() as page:
        log_in(page, address)
        assert page.locator("[data-live='dead:orders:billing']").text_content() == "3"
        # Playwright has an event loop in this thread, which a worker refuses to block.
        worker = threading.Thread(target=letters.deliver, args=(Message("orders", id="8"),))
        worker.start()
        worker.join(DEADLINE_S)
        expect(page.locator("[data-live='dead:orders:billing']")).to_have_text("4", timeout=DEADLINE_S * 1000)


def test_a_page_of_a_consumer_asks_one_question_at_a_time_and_tells_what_others_do(address):
    asked = []

    def hold(route):
        asked.append(route.request.url)

    with chromium() as page:
        log_in(page, address)
        follow(page, "orders:billing")
        page.get_by_role("button", name="Read the dead letters").wait_for()
        other = page.context.new_page()
        other.goto(page.url)
        page.bring_to_front()
        page.route("**/*", hold)
        page.wait_for_timeout(12_000)
        assert asked == [page.url], "the next comes after the answer"
        other.get_by_role("row", name="LookupError").get_by_role("link").click()
        other.get_by_label("Drop: they never run").check()
        other.get_by_label("Choose orders:billing:3").check()
        press(other, "Go on")
        other.get_by_label("Why").fill("test data")
        press(other, "Drop for ever")
        page.unroute("**/*")
        expect(page.get_by_role("status")).to_have_text("1 letter dropped.", timeout=DEADLINE_S * 1000)


def test_everything_works_without_javascript(address, letters):
    with chromium(java_script_enabled=False) as page:
        log_in(page, address)
        follow(page, "orders:billing")
        while page.get_by_role("link", name="Look again").count():
            follow(page, "Look again")
        page.get_by_role("row", name="LookupError").get_by_role("link").click()
        page.get_by_label("Drop: they never run").check()
        page.get_by_label("Choose orders:billing:3").check()
        press(page, "Go on")
        page.get_by_role("button", name="Drop for ever").press("Enter")
        assert page.url.partition("/proposal")[1], "the note is demanded"
        page.get_by_label("Why").fill("test data")
        press(page, "Drop for ever")
        while page.get_by_role("link", name="Look again").count():
            follow(page, "Look again")
        page.get_by_text("1 letter dropped.").wait_for()
    assert letters.left == ["1", "2", "None"]


def test_a_page_of_another_site_can_neither_frame_the_console_nor_use_its_session(address, letters):
    with chromium() as page:
        log_in(page, address)
        other = address.replace("127.0.0.1", "localhost")
        page.goto(f"{other}/login")
        framed = page.evaluate(
            """async (address) => {
                try { await fetch(address + '/', {credentials: 'include'}); return 'read'; }
                catch (error) { return 'refused'; }
            }""",
            address,
        )
        assert framed == "refused"
        page.set_content(f"<iframe src='{address}/'></iframe>")
        page.wait_for_timeout(500)
        assert all("Consumers" not in (frame.content() or "") for frame in page.frames[1:])
