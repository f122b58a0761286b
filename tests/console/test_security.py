"""Who may use the console, and that nothing from outside can do more than be read."""

import pytest
from starlette.testclient import TestClient

from idempotent import Message
from idempotent.console.guard import Access, Sessions
from idempotent.errors import ConfigurationError
from tests.console.browser import ORDERS, TOKEN, Browser

SCRIPT = "<script>alert(1)</script>"
EVIL = SCRIPT + "\r\nSet-Cookie: evil=1\x00\x1b[2J\u202e\"'&{{ 7*7 }}"
CHANGES = ("/propose", "/confirm", "/stop", "/outbox/retry")


def test_without_a_login_there_is_nothing_to_see(letters, console):
    browser = console()
    for path in ("/", f"/consumer?desk={ORDERS}", "/audit", "/nothing"):
        answer = browser.client.get(path)
        assert (answer.status_code, answer.headers["location"]) == (303, "/login"), path
    for path in (*CHANGES, "/read", "/body", "/logout"):
        assert browser.client.post(path, data={"csrf": ""}).status_code == 401, path
    assert browser.open("/static/console.css").status == 200


def test_each_answer_forbids_frames_foreign_scripts_and_caches(letters, console):
    browser = console()
    answers = [browser.client.get("/login"), browser.client.get("/")]
    browser.log_in()
    answers += [browser.client.get(path) for path in ("/", "/nothing", "/static/console.js")]
    answers += [browser.client.post("/read"), browser.client.request("DELETE", "/")]
    for answer in answers:
        policy = answer.headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; style-src 'self'; script-src 'self';")
        assert "frame-ancestors 'none'; base-uri 'none'" in policy
        assert "unsafe" not in policy
        assert answer.headers["x-frame-options"] == "DENY"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "same-origin"
        assert answer.headers["cache-control"] == "no-store"


def test_the_cookie_is_for_this_console_alone(console):
    answer = console().client.post("/login", data={"name": "alice", "token": TOKEN})
    cookie = answer.headers["set-cookie"]
    assert cookie.startswith("idempotent_8765=")
    assert {"HttpOnly", "SameSite=Strict", "Path=/"} <= set(cookie.split("; "))
    assert "Secure" not in cookie
    public = console(public_url="https://ops.example.com")
    cookie = public.client.post("/login", data={"name": "alice", "token": TOKEN}).headers["set-cookie"]
    assert cookie.startswith("__Host-idempotent_8765=")
    assert cookie.endswith("; Secure")
    assert public.open("/").status == 200


def test_a_session_ends(letters, console):
    browser = console().log_in()
    cookies = dict(browser.client.cookies)
    browser.press(browser.open("/"), "Log out")
    browser.client.cookies.update(cookies)
    assert browser.open("/").status == 303, "the server has forgotten it"
    now = [0.0]
    sessions = Sessions(TOKEN, lambda: now[0])
    session = sessions.begin("alice")
    now[0] = 12 * 3600.0
    assert sessions.find(session.id) is session
    now[0] += 1
    assert sessions.find(session.id) is None


def test_only_the_token_logs_in_and_wrong_ones_lock_nobody_out(console):
    login = console().client.post
    assert login("/login", data={"name": "alice"}).status_code == 401
    assert login("/login", data={"name": "", "token": TOKEN}).status_code == 400
    assert login("/login", data={"name": "a\nb", "token": TOKEN}).status_code == 400
    for given in (*"0123456789", TOKEN[:-1], "\u00e9"):
        assert login("/login", data={"name": "mallory", "token": given}).status_code == 401
    assert login("/login", data={"name": "alice", "token": TOKEN}).status_code == 303


def test_the_address_with_the_token_fills_the_form_and_logs_nobody_in(console):
    browser = console()
    page = browser.open(f"/login?token={TOKEN}")
    assert "set-cookie" not in page.headers
    (form,) = page.forms
    assert form.fields["token"] == [TOKEN]
    assert browser.send(form, name="alice").status == 200


def test_a_person_with_a_session_may_log_in_again(console):
    browser = console().log_in("alice")
    (form,) = (each for each in browser.open(f"/login?token={TOKEN}").forms if each.action == "/login")
    page = browser.send(form, name="bob")
    assert (page.status, "bob" in page.text, "alice" in page.text) == (200, True, False)


def test_another_site_logs_nobody_in(console):
    login = console().client.post
    for headers in ({"origin": "https://evil.example"}, {"origin": "null"}, {"sec-fetch-site": "cross-site"}):
        answer = login("/login", data={"name": "mallory", "token": TOKEN}, headers=headers)
        assert (answer.status_code, "set-cookie" in answer.headers) == (403, False), headers


def test_a_form_needs_the_token_of_its_session(letters, console):
    alice, bob = console().log_in("alice"), console().log_in("bob")
    alice.read()
    page = alice.item("orders:billing:1")
    (form,) = (each for each in page.forms if each.button == "Show the body")
    for csrf in ("", "x" * 43, "\u00e9", bob.open("/").forms[0].fields["csrf"]):
        assert alice.client.post(form.action, data={**form.fields, "csrf": csrf}).status_code == 403
    assert alice.client.post(form.action, json={"csrf": form.fields["csrf"][0]}).status_code in (400, 403)
    assert alice.client.post(form.action, data=form.fields).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"origin": "http://127.0.0.1:8766"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"sec-fetch-site": "none"},
    ],
    ids=str,
)
def test_a_form_of_another_site_is_refused(letters, browser, headers):
    data = browser.open("/").forms[0].fields
    assert browser.client.post("/logout", data=data, headers=headers).status_code == 403
    own = {"origin": "http://127.0.0.1:8765", "sec-fetch-site": "same-origin"}
    assert browser.client.post("/logout", data=data, headers=own).status_code == 303


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1", "127.0.0.1:8766", "ops.example.com", ""])
def test_a_name_that_points_here_is_no_address_of_the_console(browser, host):
    """DNS rebinding: a page of another site that makes its own name ours."""
    assert browser.client.get("/", headers={"host": host}).status_code == 421


@pytest.mark.parametrize(
    ("words", "address"),
    [
        ({"host": "OpsBox"}, "http://opsbox:8765"),
        ({"host": "OpsBox", "port": 80}, "http://opsbox"),
        ({"host": "::1", "port": 80}, "http://[::1]"),
        ({"public_url": "https://OPS.example.com:443/"}, "https://ops.example.com"),
        ({"public_url": "http://ops.example.com:80"}, "http://ops.example.com"),
        ({"public_url": "https://ops.example.com:8443"}, "https://ops.example.com:8443"),
    ],
    ids=str,
)
def test_addresses_are_those_that_browsers_write(words, address):
    access = Access(**{"host": "127.0.0.1", "port": 8765, "token": TOKEN, **words})
    assert address in access.origins
    assert address.partition("//")[2] in access.hosts
    assert not {"https://ops.example.com:80", "http://ops.example.com:443"} & access.origins


def test_what_is_too_long_or_no_form_is_refused(letters, browser):
    csrf = browser.open("/").forms[0].fields["csrf"][0]
    post = browser.client.post
    assert post("/read", content=b"x=" + b"y" * 3_000_000).status_code == 413
    assert post("/read", content=b"&".join(b"id=1" for _ in range(3000))).status_code == 400
    assert post("/read", content="csrf=\u00e9".encode()).status_code == 400
    for path in ("/read", "/propose", "/confirm", "/stop", "/body", "/outbox/retry"):
        assert post(path, data={"csrf": csrf}).status_code in (400, 404), path
    assert browser.client.request("TRACE", "/").status_code == 405


def test_everything_from_outside_is_text(shop, console):
    """In each place that a message, its error, or a person's words can reach."""
    shop.deliver(
        Message("orders", EVIL.encode(), id=EVIL, headers={EVIL: EVIL, "why": EVIL}),
        Message(
            "orders",
            b"x",
            id="plain",
            headers={"surrogate": "\udc80", "list": [SCRIPT], "bytes": EVIL.encode()},
        ),
    )
    browser = console().log_in(SCRIPT)
    pages = [browser.open("/"), browser.read(), browser.group(0), browser.group(1)]
    items = [page.links[label] for page in pages[2:] for label in page.links if "/item?" in page.links[label]]
    pages += [browser.open(path) for path in items]
    assert len(items) == 2
    for item in (page for page in pages[-2:] if "Show the body" in page.source):
        pages.append(browser.press(item, "Show the body"))
        proposal = browser.press(item, "Drop: it never runs")
        pages += [proposal, browser.press(proposal, "Drop for ever", note=EVIL), browser.read()]
    pages += [
        browser.open("/audit"),
        browser.open(f"/login?token={SCRIPT}&name={SCRIPT}"),
        browser.open(f"/{SCRIPT}"),
    ]
    assert shop.left == []
    assert sum("alert(1)" in page.source for page in pages) >= 10
    for page in pages:
        assert page.tags.count("script") == 1, "our own"
        assert "set-cookie" not in page.headers
        assert not {"\x00", "\x1b", "\u202e"} & set(page.source)
        assert "49" not in page.source.partition("evil")[2][:60]


def test_read_only_has_no_button_that_changes_and_refuses_each_change(letters, console):
    browser = console(read_only=True).log_in()
    pages = [browser.open("/"), browser.read(), browser.group(), browser.item("orders:billing:1")]
    actions = {form.action for page in pages for form in page.forms if form.button}
    assert actions == {"/logout", "/read", "/body", "/item"}, "the last is a GET"
    assert "read-only" in pages[0].text
    csrf = pages[0].forms[0].fields["csrf"][0]
    for path in CHANGES:
        answer = browser.client.post(path, data={"csrf": csrf, "desk": "orders:billing"})
        assert answer.status_code == 403, path
    assert "1" in browser.press(pages[3], "Show the body").text
    assert letters.left == ["1", "2", "3", "None"]


def test_a_reverse_proxy_says_who_the_user_is(letters, console):
    browser = console(token=None, user_header="x-user", public_url="https://ops.example.com")
    assert browser.open("/").status == 401
    client = browser.client
    assert client.get("/", headers={"x-user": "a\tb"}).status_code == 401
    assert client.get("/", headers=[("x-user", "a"), ("x-user", "b")]).status_code == 401
    client.headers["x-user"] = "alice"
    page = browser.open("/")
    assert (page.status, "alice" in page.text, "Log out" in page.text) == (200, True, False)
    browser.read()
    item = browser.item("orders:billing:1")
    for number in range(1001):
        client.get("/static/console.css", headers={"x-user": f"probe {number}"})
    assert browser.press(item, "Show the body").status == 200, "nobody else's requests end a form"
    client.headers["x-user"] = "bob"
    assert "bob" in browser.open("/").text
    assert browser.press(item, "Show the body").status == 403, "it is a form of alice's"
    assert "alice body" in browser.open("/audit").text
    assert dict(client.cookies) == {}


def test_a_form_behind_a_reverse_proxy_is_one_of_this_process():
    first, second = Sessions(None), Sessions(None)
    assert first.named("alice") == first.named("alice")
    assert len({each.named(user).csrf for each in (first, second) for user in ("alice", "bob")}) == 4


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ({"token": "short"}, "at least 16"),
        ({"token": None}, "needs a token"),
        ({"token": "x" * 16, "user_header": "x-user"}, "not both"),
        ({"token": "x" * 16, "public_url": "ops.example.com"}, "--public-url"),
        ({"token": "x" * 16, "public_url": "https://ops.example.com/console"}, "--public-url"),
        ({"token": "x" * 16, "host": "0.0.0.0"}, "--public-url"),
    ],
)
def test_settings_that_are_not_safe_are_refused(words, why):
    with pytest.raises(ConfigurationError, match=why):
        Access(**{"host": "127.0.0.1", "port": 8765, **words})


def test_an_error_of_the_console_shows_no_traceback(console, shop):
    browser = console().log_in()
    with TestClient(
        browser.client.app, base_url="http://127.0.0.1:8765", raise_server_exceptions=False
    ) as client:
        client.cookies.update(browser.client.cookies)
        page = Browser(client).open(f"/consumer?desk={'x' * 5000}")
    assert page.status == 404
    assert "Traceback" not in page.source
