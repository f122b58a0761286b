"""Whose a key is: users with access tokens, over HTTP."""

from __future__ import annotations

import asyncio

import httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.server import MCPServer
from mcp.server.auth.provider import AccessToken
from mcp.server.auth.settings import AuthSettings

from idempotent.adapters.mcp import client, idempotent_tool
from idempotent.checkers import MemoryChecker


class Tokens:
    """A token is `client/user`."""

    async def verify_token(self, token: str) -> AccessToken:
        name, _, user = token.partition("/")
        return AccessToken(token=token, client_id=name, subject=user, scopes=[])


def test_nobody_is_given_the_result_of_another_ones_call():
    runs: list[str] = []
    auth = AuthSettings(
        issuer_url="https://127.0.0.1",
        resource_server_url="http://127.0.0.1/mcp",
        validate_token_resource=False,
    )
    server = MCPServer("shop", auth=auth, token_verifier=Tokens())

    @server.tool()
    @idempotent_tool(MemoryChecker(), group="tests", key="order")
    def charge(order: str) -> str:
        runs.append(client() or "")
        return f"{order} of {len(runs)}"

    async def call(app, token):
        transport, headers = httpx2.ASGITransport(app), {"Authorization": f"Bearer {token}"}
        async with (
            httpx2.AsyncClient(transport=transport, headers=headers) as http,
            Client(streamable_http_client("http://127.0.0.1:8000/mcp", http_client=http)) as made,
        ):
            return [(await made.call_tool("charge", {"order": "7"})).content[0].text for _ in range(2)]

    async def run():
        app = server.streamable_http_app(json_response=True, stateless_http=True)
        async with app.router.lifespan_context(app):
            return [await call(app, token) for token in ("web/ann", "web/bob", "web/ann", "cli/ann")]

    assert asyncio.run(run()) == [["7 of 1"] * 2, ["7 of 2"] * 2, ["7 of 1"] * 2, ["7 of 3"] * 2]
    assert len(set(runs)) == 3


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
