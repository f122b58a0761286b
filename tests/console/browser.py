"""A browser without JavaScript: it follows links, and sends the forms of a page as they are."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Any
from urllib.parse import quote

TOKEN = "correct-horse-battery-staple"
DEADLINE_S = 60
ORDERS = quote("orders:billing", safe="")


@dataclass
class Form:
    action: str
    fields: dict[str, list[str]] = field(default_factory=dict)
    boxes: dict[str, list[str]] = field(default_factory=dict)
    button: str = ""


@dataclass
class Page(HTMLParser):
    """What a page has."""

    status: int
    source: str
    headers: Any
    text: str = ""
    forms: list[Form] = field(default_factory=list)
    links: dict[str, str] = field(default_factory=dict)
    tags: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()
        self._in: list[str] = []
        self._link = ""
        self.feed(self.source)
        self.text = re.sub(r"\s+", " ", self.text)

    def handle_starttag(self, tag, attrs):
        given = {name: value or "" for name, value in attrs}
        self.text += " "
        self.tags.append(tag)
        self._in.append(tag)
        if tag == "form":
            self.forms.append(Form(given["action"]))
        elif tag == "input" and self.forms:
            kind = (
                self.forms[-1].boxes if given.get("type") in ("checkbox", "radio") else self.forms[-1].fields
            )
            kind.setdefault(given.get("name", ""), []).append(given.get("value", ""))
        elif tag == "a":
            self._link = given["href"]

    def handle_endtag(self, tag):
        if tag == "a":
            self._link = ""
        while self._in and self._in.pop() != tag:
            pass

    def handle_data(self, data):
        self.text += data
        if self._link:
            self.links[data.strip()] = self._link
        if self.forms and "button" in self._in[-1:]:
            self.forms[-1].button += data


class Browser:
    def __init__(self, client) -> None:
        self.client = client

    def log_in(self, name: str = "alice", token: str = TOKEN) -> Browser:
        answer = self.client.post("/login", data={"name": name, "token": token})
        assert answer.status_code == 303, answer.text
        return self

    def open(self, path: str) -> Page:
        return self._page(self.client.get(path))

    def send(self, form: Form, **more: Any) -> Page:
        """Send a form, and go where the answer says."""
        answer = self.client.post(form.action, data={**form.fields, **more})
        if answer.status_code != 303:
            return self._page(answer)
        path = answer.headers["location"]
        return self.settled(path) if path.startswith("/proposal") else self.open(path)

    def press(self, page: Page, button: str, **more: Any) -> Page:
        (form,) = (each for each in page.forms if each.button == button)
        return self.send(form, **more)

    def read(self, desk: str = ORDERS) -> Page:
        """The page of a consumer, with what it reads on the first visit, or what is being done at its end."""
        return self.settled(f"/consumer?desk={desk}")

    def look_up(self, key: str, desk: str = ORDERS) -> Page:
        (form,) = (each for each in self.read(desk).forms if each.action == "/item")
        return self._page(self.client.get(form.action, params={**form.fields, "id": key}))

    def settled(self, path: str) -> Page:
        until = time.monotonic() + DEADLINE_S
        while " data-busy>" in (page := self.open(path)).source:
            assert time.monotonic() < until, page.text
            time.sleep(0.05)
        return page

    def again(self, desk: str = ORDERS) -> Page:
        page = self.press(self.read(desk), "Read the dead letters")
        assert page.status == 200
        return self.read(desk)

    def group(self, number: int = 0, desk: str = ORDERS) -> Page:
        """The page of a group of letters, the largest first."""
        links = [path for path in self.read(desk).links.values() if "/group?" in path and "error=" in path]
        return self.open(links[number])

    def propose(self, page: Page, action: str, *ids: str, **more: Any) -> Page:
        """Choose letters of a group's page, and go to the page that asks for a confirmation."""
        (form,) = (each for each in page.forms if each.action == "/propose" and each.boxes)
        answer = self.client.post(
            form.action, data={**form.fields, "action": action, "id": list(ids), **more}
        )
        if answer.status_code != 303:
            return self._page(answer)
        return self.settled(answer.headers["location"])

    def item(self, label: str) -> Page:
        """The page of a letter."""
        groups = [path for path in self.read().links.values() if "/group?" in path and "kind=letters" in path]
        links = {name: path for group in groups for name, path in self.open(group).links.items()}
        return self.open(links[label])

    def _page(self, answer) -> Page:
        return Page(answer.status_code, answer.text, answer.headers)
