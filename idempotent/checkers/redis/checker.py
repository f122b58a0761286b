"""RedisChecker: leased claims in Redis, with the admin of its keys."""

from __future__ import annotations

import builtins
import os
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice, tee
from typing import Any, Final

from idempotent.admin import (
    OWN,
    Finding,
    KeyAdmin,
    KeyFilter,
    KeyRecord,
    KeyStats,
    StoreStats,
    counted,
    measured,
)
from idempotent.checkers.base import DEFAULT_LEASE_S, DEFAULT_RETENTION_S, AbstractIdempotentChecker
from idempotent.checkers.durations import MICROSECONDS, Durations
from idempotent.checkers.judging import known
from idempotent.checkers.redis.findings import redis_findings
from idempotent.checkers.redis.layout import HEAD_BYTES, Script, claim_body, key_record, release_body
from idempotent.claims import Claim, ClaimRequest, Completion, Decision, Failure, Released, Verdict
from idempotent.errors import ConfigurationError, StoreBusyError, StoreError, url_word
from idempotent.keys import Key, KeySpace
from idempotent.stores.redis.client import LONGEST_ANSWER_S, Client, open_client
from idempotent.stores.redis.scripts import RedisStore
from idempotent.validation import text

DEFAULT_PREFIX: Final = "idempotent:"
_TOKEN_BYTES: Final = 8
# Asked for by `ping`; no consumer has this name.
_PINGED: Final = KeySpace(OWN, "ping").key("ping")
_ACQUIRED, _DONE, _DEAD, _, _NO_KEY = range(5)
# Of a key in progress.
_HELD: Final = -1
# Python 3.11 takes as long to look up an enum's member as to create a small object.
_VERDICT_ACQUIRED: Final = Verdict.ACQUIRED
_UNREADABLE: Final = Decision(Verdict.IN_PROGRESS)
"""Stands for the answer that the stored value is not a key."""
# Of the admin. A stored result may take 1 MB, so a page is small.
_PAGE: Final = 200
_SCAN_COUNT: Final = 1000
_READ: Final = Script("read")
_WHOLE: Final = -1


class RedisChecker(AbstractIdempotentChecker):
    """Claims are string values with a lease, in a Redis server or cluster (6.2 or later).

    The server must not lose acknowledged writes: after a failover or an eviction that loses some, an effect may
    repeat. `redis_findings` checks the server's settings for that.

    A call whose answer was lost is repeated once, unless the client itself retries. Repeating a claim or a completion
    is harmless, because the store knows its owner token; a failure has a token of its own and is counted once. A
    release without a failure may report `owned=False` when the lost call had already deleted the key.

    Args:
        client_or_url: `redis.Redis`, `redis.RedisCluster`, or a URL (`redis://user:password@host:6379/0`, `rediss://`
            for TLS, `unix://`). A client with `decode_responses` works too. A client made from a URL waits at most
            5 seconds, or a third of a shorter lease, for an answer unless the URL sets `?socket_timeout=`.
        prefix: start of the names of all keys, without braces: they would put all keys of a cluster in one slot.
        lease_s: seconds a claim lasts without renewal; None: it never lapses (`claim_once`).
        retention_s: seconds a key is remembered, counted from its claim, or from its completion if less than half of
            that time was left then. Make it longer than the time in which your broker, or a person with a dead-letter
            queue, can redeliver a message.
        dead_retention_s: seconds a DEAD key is remembered; None: until a person resolves it.
        combine: claims and completions of single messages that arrive while several calls are under way go together;
            False: each is a statement of its own.

    Raises:
        ConfigurationError: an invalid URL, client, prefix or duration.
        MissingExtraError: redis-py is not installed.
    """

    def __init__(
        self,
        client_or_url: Client | str,
        *,
        prefix: str = DEFAULT_PREFIX,
        lease_s: float | None = DEFAULT_LEASE_S,
        retention_s: float = DEFAULT_RETENTION_S,
        dead_retention_s: float | None = None,
        combine: bool = True,
    ) -> None:
        super().__init__(
            lease_s=lease_s, retention_s=retention_s, dead_retention_s=dead_retention_s, combine=combine
        )
        if not text(prefix, "prefix").isprintable() or "{" in prefix or "}" in prefix:
            raise ConfigurationError(f"prefix must be printable text without braces, not {prefix!r}")
        self._owns_client = isinstance(client_or_url, str)
        self._url: Final = client_or_url if isinstance(client_or_url, str) else None
        # A renewal must fail before its lease ends.
        timeout_s = LONGEST_ANSWER_S if lease_s is None else min(LONGEST_ANSWER_S, lease_s / 3)
        self.store: Final = RedisStore(open_client(client_or_url, timeout_s), prefix)
        self._name = self.store.names.name
        self._claims = Script("claim", Durations.of(self))
        self._completes = Script("complete", Durations.of(self))
        self._releases = Script("release", Durations.of(self))
        self._renews = Script("renew", Durations.of(self))

    @property
    def command_options(self) -> str:
        url = "env:VARIABLE" if self._url is None else url_word(self._url)
        return f"--url {url} --prefix {shlex.quote(self.store.names.prefix.decode())}"

    @property
    def store_name(self) -> str:
        return f"redis://{self.store.where.partition(' as ')[0]}/{self.store.names.prefix.decode()}"

    def admin(self) -> KeyAdmin:
        return RedisKeyAdmin(self.store, Durations.of(self))

    def ping(self) -> None:
        self.admin().get(_PINGED)
        with self.store.edge():
            # Changes nothing, and is refused where nothing may be written.
            self.store.client.persist(self._name(_PINGED.hash))

    def findings(self) -> Sequence[Finding]:
        return redis_findings(self.store.client)

    def _claim(self, request: ClaimRequest) -> Decision:
        answer = self.store.run_one(self._claims, self._name(request.key.hash), claim_body(request))
        decision = _decision(request, answer)
        if decision is _UNREADABLE:
            raise self._unreadable(request)
        return decision

    def _claim_many(self, requests: Sequence[ClaimRequest]) -> list[Decision]:
        # The three iterators advance together, so requests are sent while later ones are still being made.
        asked, named, described = tee(requests, 3)
        names = (self._name(request.key.hash) for request in named)
        answers = self.store.run_many(self._claims, names, map(claim_body, described))
        decisions = [_decision(request, answer) for request, answer in zip(asked, answers, strict=True)]
        if _UNREADABLE in decisions:
            # The others are free again for claims of their own, which do not fail with this one.
            mine = [(decision.claim, None) for decision in decisions if decision.claim is not None]
            if mine:
                self._release_many(mine)
            raise StoreBusyError(str(self._unreadable(requests[decisions.index(_UNREADABLE)])))
        return decisions

    def _unreadable(self, request: ClaimRequest) -> StoreError:
        name = self._name(request.key.hash).decode()
        return StoreError(
            f"the value of key {request.key} in Redis {self.store.where} has a layout that this version cannot read: "
            "another program, or a newer version of this library, wrote it. "
            f"Look at it ({name}), and delete it if nothing needs it"
        )

    def _complete(self, completion: Completion) -> bool:
        name = self._name_of(completion.claim)
        return bool(self.store.run_one(self._completes, name, _completion_body(completion)))

    def _complete_many(self, completions: Sequence[Completion]) -> list[bool]:
        names = (self._name_of(completion.claim) for completion in completions)
        answers = self.store.run_many(self._completes, names, map(_completion_body, completions))
        return [answer == 1 for answer in answers]

    def _release(self, claim: Claim, failure: Failure | None) -> Released:
        return self._release_many([(claim, failure)])[0]

    def _release_many(self, releases: Sequence[tuple[Claim, Failure | None]]) -> list[Released]:
        # A release that is sent again after a lost answer has the same token, so its attempt is counted once.
        token = os.urandom(_TOKEN_BYTES)
        names = [self._name_of(claim) for claim, _ in releases]
        bodies = [release_body(claim, failure, token) for claim, failure in releases]
        answers = self.store.run_many(self._releases, names, bodies)
        return [Released(owned == 1, attempts, dead == 1) for owned, attempts, dead in answers]

    def _renew_many(self, claims: Sequence[Claim]) -> list[bool]:
        names = [self._name_of(claim) for claim in claims]
        owners = [claim.owner for claim in claims]
        return [answer == 1 for answer in self.store.run_many(self._renews, names, owners)]

    def _reconnect(self) -> None:
        self.store.close()

    def _garbage_collect(self, limit: int) -> int:
        del limit
        return 0  # Redis deletes expired keys itself

    def close(self) -> None:
        """Stop renewing leases; close the checker's connections, and the client if the checker made it. Idempotent."""
        super().close()
        self.store.close()
        if self._owns_client:
            self.store.client.close()

    def _name_of(self, claim: Claim) -> bytes:
        return self._name(claim.key.hash)


def _completion_body(completion: Completion) -> bytes:
    result = completion.result
    return completion.claim.owner if result is None else completion.claim.owner + b"=" + result


def _decision(request: ClaimRequest, answer: Any) -> Decision:
    """The decision in an answer of `claim.lua`."""
    if type(answer) is int:  # the fence of a free key: the common case, so it comes first
        return Decision(_VERDICT_ACQUIRED, Claim(request.key, answer, request.owner))
    if answer[0] == _ACQUIRED:
        _, fence, deaths, *failed = answer
        claim = Claim(request.key, fence, request.owner, deaths=deaths)
        decision = Decision(Verdict.ACQUIRED, claim, deaths=deaths)
        return known(decision, request, failed[0]) if failed else decision
    if answer[0] == _DONE:
        return Decision(Verdict.DUPLICATE, fingerprint=answer[1], result=answer[2])
    if answer[0] == _DEAD:
        reason = None if answer[2] is None else answer[2].decode("utf-8", "replace")
        return Decision(Verdict.DEAD, fingerprint=answer[1], reason=reason)
    if answer[0] == _NO_KEY:
        return _UNREADABLE
    _, fingerprint, rest_us, state = answer
    rest_s = float("inf") if rest_us < 0 else rest_us / MICROSECONDS
    return Decision(
        Verdict.IN_PROGRESS,
        retry_after_s=rest_s,
        deaths=max(state, 0),
        fingerprint=fingerprint,
        held=state == _HELD,
    )


class RedisKeyAdmin(KeyAdmin):
    """The keys under one prefix, in no order.

    SCAN finds them. It does not block the server, and returns every key that exists during the whole scan. A key that
    is created, deleted or moved to another node of a cluster during the scan may be missed or listed twice.

    Args:
        store: the Redis database.
        durations: how long a key resolved after its expiry is still kept.
    """

    def __init__(self, store: RedisStore, durations: Durations) -> None:
        self._store = store
        self._resolves = Script("resolve", durations)

    def list(self, selection: KeyFilter, *, limit: int | None = None) -> Iterator[KeyRecord]:
        return islice(filter(selection.matches, self._records(_WHOLE)), limit)

    def get(self, key: Key) -> KeyRecord | None:
        return self.get_many([key]).get(key.hash)

    def get_many(self, keys: Sequence[Key]) -> Mapping[bytes, KeyRecord]:
        names = [self._store.names.name(hashed) for hashed in dict.fromkeys(key.hash for key in keys)]
        return {record.hash: record for record in self._read(names, _WHOLE)}

    def stats(self) -> builtins.list[KeyStats]:
        return counted(self._records(HEAD_BYTES))

    def measure(self) -> StoreStats:
        return measured(self._records(HEAD_BYTES, without_done=True))

    def reopen(self, record: KeyRecord) -> bool:
        return self._resolve(record, b"reopen")

    def mark_done(self, record: KeyRecord) -> bool:
        return self._resolve(record, b"done")

    def _resolve(self, record: KeyRecord, decision: bytes) -> bool:
        name = self._store.names.name(record.hash)
        seen = (record.fence, int(record.status), record.update_at_us)
        return bool(self._store.run(self._resolves, [name], (*seen, decision)))

    def _records(self, last_byte: int, *, without_done: bool = False) -> Iterator[KeyRecord]:
        names = self._names()
        # SCAN may return a key twice, in the same call or the next one.
        size = _SCAN_COUNT if without_done else _PAGE
        while page := builtins.list(dict.fromkeys(islice(names, size))):
            yield from self._read(page, last_byte, without_done=without_done)

    def _names(self) -> Iterator[bytes]:
        prefix = re.sub(rb"([\\*?\[\]^])", rb"\\\1", self._store.names.prefix)
        found: Iterable[bytes | str] = self._store.client.scan_iter(match=prefix + b"{*", count=_SCAN_COUNT)
        with self._store.edge():
            for name in found:
                encoded = name.encode() if isinstance(name, str) else name
                if self._store.names.hash_of(encoded) is not None:
                    yield encoded

    def _read(
        self, names: builtins.list[bytes], last_byte: int, *, without_done: bool = False
    ) -> Iterator[KeyRecord]:
        for positions in self._store.together(names):
            part = [names[at] for at in positions]
            now_us, *values = self._store.run(_READ, part, [last_byte, int(without_done)])
            for at, name in enumerate(part):
                value, failure = values[2 * at : 2 * at + 2]
                if value:  # a key that was released or expired since the scan has none
                    hashed = self._store.names.hash_of(name) or b""
                    yield key_record(hashed, value, failure, now_us)
