"""Makes HTML of the console's templates: how texts, times and bodies from outside are written there."""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import quote, urlencode

import jinja2
from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from idempotent.console.guard import Access
from idempotent.errors import brief
from idempotent.observe import OutboxStats
from idempotent.views.keys import moment, since, span, status_word
from idempotent.views.letters import MOST_OF_BODY, body_text, by_error, changed_meanwhile
from idempotent.views.text import count, distinct, harmless

_SHOWN_TEXT: Final = 2000


class Pages:
    """Makes pages of templates.

    Args:
        access: who may use them.
    """

    def __init__(self, access: Access) -> None:
        self._environment = jinja2.Environment(
            loader=jinja2.PackageLoader("idempotent.console"),
            autoescape=True,
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            finalize=_shown,
        )
        self._environment.globals.update(access=access, oldest=_oldest, by_error=by_error)
        self._environment.filters.update(
            q=_quoted, since=_since, moment=moment, count=count, status=status_word, changed=changed_meanwhile
        )

    def show(self, request: Request, template: str, status_code: int = 200, **values: Any) -> Response:
        """A page for the person who asks, who may not have logged in."""
        values["session"] = getattr(request.state, "session", None)
        text = self._environment.get_template(template).render(values)
        return Response(text.encode("utf-8", "backslashreplace"), status_code, media_type="text/html")


def is_poll(request: Request) -> bool:
    """Whether the script of a page asks, which takes only what has `data-live` from the answer."""
    return "x-poll" in request.headers


def redirect(path: str, **values: Any) -> Response:
    """Go there after a POST."""
    return RedirectResponse(f"{path}?{urlencode(values, errors='surrogatepass')}", 303)


def readable(body: bytes | None) -> dict[str, Any]:
    """A body as a page shows it: the beginning of its text, or base64."""
    form, text = ("none: a tombstone", "") if body is None else body_text(body)
    return {"form": form, "text": harmless(text[:MOST_OF_BODY]), "is_cut": len(text) > MOST_OF_BODY}


def _oldest(stats: OutboxStats) -> str:
    """For how long the oldest message of an outbox waits."""
    return "none" if stats.oldest_s is None else f"{span(int(stats.oldest_s * 1_000_000))} ago"


def _quoted(value: str) -> Markup:
    """A value in an address."""
    return Markup(quote(value, safe="", errors="surrogatepass"))  # noqa: S704 - nothing in it is special


def _since(time_us: int, now_us: int, age_s: int = 0) -> str:
    """How long ago, by the store's clock, for what was read `age_s` seconds ago."""
    return since(time_us, now_us + age_s * 1_000_000)


def _shown(value: Any) -> Any:
    """What stands in a page: text from outside without what would make it look like other text."""
    if type(value) is int:
        return f"{value:,}"
    if type(value) is not str:
        return "" if value is None else value
    return distinct(brief(value)[:_SHOWN_TEXT])
