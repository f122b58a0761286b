"""A console that real browsers reach, and Debian's Chromium."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from socket import socket
from typing import Any

from playwright.sync_api import Page, sync_playwright

from idempotent.console.app import Console
from idempotent.console.guard import Access
from idempotent.console.serve import listening, server_of
from tests.console.browser import TOKEN

DEADLINE_S = 60
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


@contextmanager
def served(**options: Any) -> Iterator[str]:
    """A console with these words of `Console`; its address."""
    with socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    access = Access("127.0.0.1", port, TOKEN)
    console = Console(access, **options)
    server = server_of(console)
    thread = threading.Thread(target=server.run, args=([listening(access)],))
    thread.start()
    try:
        until = time.monotonic() + DEADLINE_S
        while not server.started:
            assert time.monotonic() < until
            time.sleep(0.02)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join(DEADLINE_S)
        console.close()


@contextmanager
def chromium(**options: Any) -> Iterator[Page]:
    """A page of a headless Chromium. What it refuses or fails at is in `page.console_errors`."""
    with sync_playwright() as playwright:
        # Without the sandbox: root, and containers, have none.
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        context = browser.new_context(viewport={"width": 1280, "height": 800}, **options)
        context.set_default_timeout(DEADLINE_S * 1000)
        try:
            yield context.new_page()
        finally:
            browser.close()


def log_in(page: Page, address: str) -> None:
    """With the keyboard alone."""
    page.goto(f"{address}/login?token={TOKEN}")
    page.get_by_label("Your name").focus()
    page.keyboard.type("alice")
    page.keyboard.press("Enter")
    page.wait_for_url(f"{address}/")
