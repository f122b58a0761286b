"""`idempotent web`: the console in a browser."""

from __future__ import annotations

import os
import secrets
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.markup import escape

from idempotent.adapters.urls import letters_adapter_from_url
from idempotent.cli.configuration import URL_VARIABLE, url_in
from idempotent.cli.modules import checkers_in, registry_at
from idempotent.cli.options import (
    CheckersOption,
    IdleOption,
    OptionalBrokerOption,
    PrefixOption,
    TableOption,
    urls_in,
)
from idempotent.cli.stores import checker_at
from idempotent.cli.terminal.logs import log_to_stderr
from idempotent.cli.terminal.output import note
from idempotent.errors import ConfigurationError, MissingExtraError

TOKEN_VARIABLE: Final = "IDEMPOTENT_WEB_TOKEN"  # noqa: S105 - its name


def web(
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="[MODULE]",
            show_default=False,
            help="The module of the consumers, as for `idempotent run`. Without it: --url, a store alone.",
        ),
    ] = None,
    broker: OptionalBrokerOption = None,
    checker: CheckersOption = None,
    url: Annotated[
        str | None,
        typer.Option(
            "--url",
            metavar="URL",
            show_default=False,
            callback=urls_in,
            help="Without a module: a store, for its keys and its outbox. Default: IDEMPOTENT_URL. Or env:VARIABLE.",
        ),
    ] = None,
    table: TableOption = None,
    prefix: PrefixOption = None,
    host: Annotated[
        str,
        typer.Option(metavar="ADDRESS", help="Where to listen. Other than loopback: with a token of yours."),
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, metavar="N", help="The port.")] = 8765,
    token_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            dir_okay=False,
            exists=True,
            show_default=False,
            help=f"The token to log in with, or {TOKEN_VARIABLE}. Default: a random one, which is printed.",
        ),
    ] = None,
    user_header: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            show_default=False,
            help="The header in which a reverse proxy, which alone reaches this port, says who the user is.",
        ),
    ] = None,
    public_url: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            show_default=False,
            help="The address in browsers, if a reverse proxy has another.",
        ),
    ] = None,
    read_only: Annotated[bool, typer.Option("--read-only", help="Refuse every change.")] = False,
    audit_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            dir_okay=False,
            show_default=False,
            help="Note each action there too, a line of JSON each.",
        ),
    ] = None,
    idle: IdleOption = 3.0,
) -> None:
    """Show dead letters, keys and outboxes in a browser, and let people decide about them.

    Everything is as with `idempotent dead`, `redrive`, `keys` and `outbox`. It listens on this machine alone, prints
    the address to log in at, and ends with SIGTERM or Ctrl-C. What is done is logged (console_action).
    """
    try:
        from idempotent.console.app import Console
        from idempotent.console.audit import Audit
        from idempotent.console.guard import LOOPBACK, Access
        from idempotent.console.serve import listening, serve
    except ImportError as error:
        raise MissingExtraError(error.name or "a library", "console") from error
    if target is None and url is None and URL_VARIABLE in os.environ:
        url = url_in(os.environ[URL_VARIABLE])
    if (target is None) == (url is None):
        raise typer.BadParameter("give the MODULE of your consumers, or --url for a store alone")
    if url is None and (table is not None or prefix is not None):
        raise typer.BadParameter("--table and --prefix go with --url; a checker's URL has its own: ?table=")
    log_to_stderr("warning")
    chosen = _token(token_file)
    if host not in LOOPBACK and chosen is None and user_header is None:
        raise ConfigurationError(
            f"--host {host} is seen by other machines: give a token with --token-file or {TOKEN_VARIABLE}, or let a "
            "reverse proxy log people in with --user-header"
        )
    token = secrets.token_urlsafe() if chosen is None and user_header is None else chosen
    access = Access(host, port, token, user_header, public_url, read_only)
    with ExitStack() as opened:
        store = registry = None
        if target is not None:
            registry = registry_at(target)
            opened.enter_context(checkers_in(registry, checker, limited=registry.consumers.values()))
        elif url is not None:
            store = opened.enter_context(checker_at(url, table=table, prefix=prefix))
        adapter = None if broker is None or registry is None else partial(letters_adapter_from_url, broker)
        console = Console(
            access, registry=registry, adapter=adapter, checker=store, audit=Audit(audit_file), idle_s=idle
        )
        socket = listening(access)
        at = public_url or f"http://{f'[{host}]' if ':' in host else host}:{port}"
        address = at if user_header is not None else f"{at.rstrip('/')}/login"
        if token != chosen:
            address += f"?token={token}"
        # Nobody is sent to another program's page. Not `plain`, which would mask the token.
        note(f"The console is at {escape(address)} Ctrl-C stops.")
        serve(console, socket)


def _token(file: Path | None) -> str | None:
    """The token that the user has chosen; None: none. Raises ConfigurationError: the file cannot be read."""
    if file is None:
        return os.environ.get(TOKEN_VARIABLE)
    try:
        return file.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"the token file {file} cannot be read: {error}") from error
