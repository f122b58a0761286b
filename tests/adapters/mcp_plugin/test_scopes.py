"""Whose a key is: users with access tokens, over HTTP."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.server import MCPServer
from mcp.server.auth.middleware.auth_context import get_access_token
from mcp.server.auth.provider import AccessToken
from mcp.server.auth.settings import AuthSettings
from mcp_types import CallToolResult

from idempotent.adapters.mcp import idempotent_tool
from idempotent.checkers import MemoryChecker


class Tokens:
    """A token is `client/user`, or `client` from a verifier that does not know the user."""

    async def verify_token(self, token: str) -> AccessToken:
        name, _, user = token.partition("/")
        return AccessToken(token=token, client_id=name, subject=user or None, scopes=[])


class Shop:
    """A server behind authentication, with a tool that tells how often it ran."""

    def __init__(self, **options: Any) -> None:
        auth = AuthSettings(
            issuer_url="https://127.0.0.1",
            resource_server_url="http://127.0.0.1/mcp",
            validate_token_resource=False,
        )
        self.runs = 0
        self.server = MCPServer("shop", auth=auth, token_verifier=Tokens())

        @self.server.tool()
        @idempotent_tool(MemoryChecker(), group="tests", key="order", **options)
        def charge(order: str) -> str:
            self.runs += 1
            return f"{order} of {self.runs}"

    def call(self, *tokens: str) -> list[CallToolResult]:
        """What a call over HTTP with each of these tokens gets, one after the other."""

        async def one(app: Any, token: str) -> CallToolResult:
            transport, headers = httpx2.ASGITransport(app), {"Authorization": f"Bearer {token}"}
            async with (
                httpx2.AsyncClient(transport=transport, headers=headers) as http,
                Client(streamable_http_client("http://127.0.0.1:8000/mcp", http_client=http)) as made,
            ):
                return await made.call_tool("charge", {"order": "7"})

        async def run() -> list[CallToolResult]:
            app = self.server.streamable_http_app(json_response=True, stateless_http=True)
            async with app.router.lifespan_context(app):
                return [await one(app, token) for token in tokens]

        return asyncio.run(run())


def texts(results: list[CallToolResult]) -> list[str]:
    assert not any(each.is_error for each in results)
    return [each.content[0].text for each in results]  # type: ignore[union-attr]


def test_nobody_is_given_the_result_of_another_ones_call():
    found = Shop().call("web/ann", "web/ann", "web/bob", "web/ann", "cli/ann", "cli/ann")
    assert texts(found) == ["7 of 1", "7 of 1", "7 of 2", "7 of 1", "7 of 3", "7 of 3"]


def test_a_token_that_names_no_user_is_refused_before_the_tool_runs(caplog):
    shop = Shop()
    assert all(each.is_error for each in shop.call("web", "web"))
    assert shop.runs == 0
    causes = [str(line.exc_info[1].__cause__) for line in caplog.records if line.exc_info]
    assert all("let the TokenVerifier set AccessToken.subject" in each for each in causes)
    assert causes


def test_with_a_scope_of_your_own_a_token_needs_no_user():
    def by_client() -> str:
        token = get_access_token()
        assert token is not None
        return token.client_id

    assert texts(Shop(scope=by_client).call("web", "web", "cli")) == ["7 of 1", "7 of 1", "7 of 2"]


def test_a_scope_of_your_own():
    owner = ["ann"]
    runs: list[str] = []

    @idempotent_tool(MemoryChecker(), group="tests", key="order", name="charge", scope=lambda: owner[0])
    def charge(order: str | int) -> int:
        runs.append(owner[0])
        return len(runs)

    assert [charge("7"), charge("7"), charge(7)] == [1] * 3
    owner[0] = "bob"
    assert [charge("7"), charge("7")] == [2] * 2
    assert runs == ["ann", "bob"]
