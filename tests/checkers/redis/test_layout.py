"""The bytes of a stored key: what Lua writes, Python reads."""

import pytest

from idempotent.checkers.redis.layout import Flag, stored_failure
from idempotent.claims import Claim, ClaimRequest, Failure, KeyStatus
from idempotent.errors import StoreError
from idempotent.stores.redis.scripts import KeyNames
from tests.checkers.redis.stored import HOUR_S, KEYS, name_of, server_time_us, stored_key


def test_what_python_reads_is_what_lua_wrote(make, client):
    checker = make(lease_s=20, retention_s=HOUR_S)
    key = KEYS.key("7")
    before = server_time_us(client)
    claim = checker.protocol.claim(ClaimRequest(key, fingerprint=b"f" * 20)).claim
    stored = stored_key(client.get(name_of(checker, key)))
    assert stored.status is KeyStatus.IN_PROGRESS
    assert stored.text == "orders.paid:billing:7"
    assert before <= stored.fence == claim.fence == stored.update_at_us <= server_time_us(client)
    assert stored.lease_until_us == stored.fence + 20_000_000
    assert stored.expires_at_us == stored.fence + 3_600_000_000
    assert stored.result is None

    checker.protocol.complete(claim, b'{"paid":true}')
    done = stored_key(client.get(name_of(checker, key)))
    assert (done.status, done.result, done.lease_until_us) == (KeyStatus.DONE, b'{"paid":true}', None)
    assert (done.text, done.fence, done.expires_at_us) == (stored.text, stored.fence, stored.expires_at_us)
    assert done.update_at_us > stored.update_at_us


def test_every_status_and_flag_in_lua_is_that_of_python():
    from importlib.resources import files

    text = (files("idempotent.checkers.redis") / "layout.lua").read_text()
    assert (
        f"local IN_PROGRESS, IN_PROGRESS_PARK, DONE, DEAD = {KeyStatus.IN_PROGRESS:d}, "
        f"{KeyStatus.IN_PROGRESS_PARK:d}, {KeyStatus.DONE:d}, {KeyStatus.DEAD:d}\n" in text
    )
    flags = ", ".join(flag.name for flag in Flag if flag.name)
    assert f"local {flags} = {', '.join(str(flag.value) for flag in Flag)}\n" in text


def test_a_value_of_another_layout_is_an_error_not_a_verdict(make, client):
    checker = make()
    client.set(name_of(checker, KEYS.key("7")), b"\x09" + bytes(80))
    with pytest.raises(StoreError, match="layout"):
        checker.protocol.claim(ClaimRequest(KEYS.key("7")))


def test_names_lead_back_to_hashes_and_nothing_else_does():
    names = KeyNames("app:")
    key = KEYS.key("7")
    name = names.name(key.hash)
    assert name.startswith(b"app:{")
    assert name.endswith(key.token.encode())
    assert names.hash_of(name) == key.hash
    assert names.hash_of(name + b":f") is None
    assert names.hash_of(name.replace(b"app:", b"api:")) is None


def test_an_error_is_kept_as_one_line_of_a_thousand_characters(make, client):
    checker = make()
    claim = checker.protocol.claim(ClaimRequest(KEYS.key("7"))).claim
    checker.protocol.release(claim, Failure("a\x00b\nc\ud800" + "é" * 2000, max_attempts=9))
    attempts, error = stored_failure(client.get(name_of(checker, KEYS.key("7")) + b":f"))
    assert attempts == 1
    assert error == "a b c " + "é" * 994


def test_an_owner_is_compared_as_bytes(make):
    checker = make()
    owner = b"\x00\xff'\r\n\\%s[[=]]{}0"
    claim = checker.protocol.claim(ClaimRequest(KEYS.key("7"), owner=owner)).claim
    assert not checker.protocol.complete(Claim(claim.key, claim.fence, owner[:-1] + b"1"))
    assert checker.protocol.complete(claim)
