"""Makes HTML of the console's templates: how texts, times and bodies from outside are written there."""

from __future__ import annotations

import base64
from collections.abc import Callable
from importlib.resources import files
from typing import Any, Final, TypeAlias
from urllib.parse import quote, urlencode

import jinja2
from markupsafe import Markup
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from idempotent.errors import brief
from idempotent.observe import OutboxStats
from idempotent.views.keys import moment, since, span, status_word
from idempotent.views.letters import changed_meanwhile
from idempotent.views.text import count, distinct, harmless

_SHOWN_BODY: Final = 10_000
_SHOWN_TEXT: Final = 2000
_STATIC: Final = {"console.css": "text/css", "console.js": "text/javascript"}


Address: TypeAlias = tuple[str, Callable[[Request], Response], str]
"""Where a page is, what answers it, and whether it is a GET or a POST."""


class Pages:
    """Makes pages of templates.

    Args:
        values: what all templates have.
    """

    def __init__(self, **values: Any) -> None:
        self._environment = jinja2.Environment(
            loader=jinja2.PackageLoader("idempotent.console"),
            autoescape=True,
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            finalize=_shown,
        )
        self._environment.globals.update(values, oldest=oldest)
        self._environment.filters.update(
            q=_quoted, since=_since, moment=moment, count=count, status=status_word, changed=changed_meanwhile
        )

    def show(self, request: Request, template: str, status_code: int = 200, **values: Any) -> Response:
        """A page for the person who asks."""
        session = getattr(request.state, "session", None)
        return self.page(template, status_code, session=session, **values)

    def page(self, template: str, status_code: int, **values: Any) -> Response:
        """A page. `session` is among the values; None: nobody has logged in."""
        text = self._environment.get_template(template).render(values)
        return Response(text.encode("utf-8", "backslashreplace"), status_code, media_type="text/html")


def static(request: Request) -> Response:
    """The style and the script."""
    name = request.path_params["name"]
    if name not in _STATIC:
        raise HTTPException(404)
    folder = files("idempotent.console")
    return Response((folder / "static" / name).read_bytes(), media_type=_STATIC[name])


def redirect(path: str, **values: Any) -> Response:
    """Go there after a POST."""
    return RedirectResponse(f"{path}?{urlencode(values, errors='surrogatepass')}", 303)


def readable(body: bytes | None) -> dict[str, Any]:
    """A body as a page shows it: the beginning of its text, or base64."""
    if body is None:
        return {"form": "none: a tombstone", "text": "", "is_cut": False}
    try:
        form, text = "text", harmless(body[: 4 * _SHOWN_BODY + 4].decode("utf-8", "ignore"))
        body.decode()
    except UnicodeDecodeError:
        form, text = "base64", base64.b64encode(body[:_SHOWN_BODY]).decode()
    return {
        "form": form,
        "text": text[:_SHOWN_BODY],
        "is_cut": len(body) > _SHOWN_BODY or len(text) > _SHOWN_BODY,
    }


def oldest(stats: OutboxStats) -> str:
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
    if type(value) is not str:
        return "" if value is None else value
    return distinct(brief(value)[:_SHOWN_TEXT])
