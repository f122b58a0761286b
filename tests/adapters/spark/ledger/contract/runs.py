"""Runs: begin, resume, prepare, commit and abort, in every ledger."""

from __future__ import annotations

from dataclasses import replace

import pytest

from idempotent.adapters.spark.ledger import RunState
from idempotent.adapters.spark.ledger.run_claims import RowVerdict
from idempotent.adapters.spark.ledger.runs import RunRef
from idempotent.errors import (
    ClaimsExpiredError,
    ConfigurationError,
    RunFencedError,
    RunInputChangedError,
    StoreReplacedError,
)
from tests.adapters.spark.ledger.contract.base import LONG_S, LedgerContract, keys


class RunsContract(LedgerContract):
    def test_a_run_is_begun_once_and_then_resumed(self):
        first = self.ledger.begin("orders", "r1", lease_s=LONG_S)
        again = self.ledger.begin("orders", "r1", lease_s=LONG_S, takeover=True)
        assert (first.state, first.ref.epoch, first.ref.generation) == (RunState.OPEN, 1, 1)
        assert (again.ref, again.state) == (replace(first.ref, epoch=2), RunState.OPEN)
        assert 0 < first.ref.token < 2**63
        assert again.began_at_us == first.began_at_us <= again.now_us < again.lease_until_us

    def test_runs_of_other_names_and_consumers_are_others(self):
        named = [("orders", "r1"), ("orders", "R1"), ("orders", "r1 "), ("bills", "r1"), ("orders:r1", "")]
        tokens = {self.ledger.begin(*names, lease_s=LONG_S).ref.token for names in named}
        assert len(tokens) == len(named)

    @pytest.mark.parametrize("name", ["é😀 " * 200, "a\0b", "x" * 10_000, ""])
    def test_any_text_names_a_run(self, name):
        ref = self.ledger.begin(name, name, lease_s=LONG_S).ref
        row = self.ledger.store.newest(name, name)
        assert row is not None
        assert row.ref == ref == RunRef(name, name, 1, ref.token, 1)
        assert self.state(ref) is RunState.OPEN

    def test_a_run_never_begun_is_not_there(self):
        assert self.ledger.store.newest("orders", "r1") is None

    @pytest.mark.parametrize("prepared", [False, True])
    def test_a_prepared_or_committed_run_is_resumed_as_it_is(self, prepared):
        ref = self.begin()
        self.ledger.prepare(ref)
        if not prepared:
            self.ledger.commit(ref, "s3://out/r1")
        row = self.ledger.begin("orders", "r1", lease_s=LONG_S, takeover=prepared)
        assert row.ref == replace(ref, epoch=1 + prepared)
        assert row.prepared == 1
        assert row.state is (RunState.PREPARED if prepared else RunState.COMMITTED)
        assert row.output_ref == (None if prepared else "s3://out/r1")

    def test_after_an_abort_the_next_generation_has_another_token(self):
        first = self.begin()
        self.ledger.abort(first)
        second = self.ledger.begin("orders", "r1", lease_s=LONG_S)
        assert (second.ref.generation, second.ref.epoch, second.state) == (2, 1, RunState.OPEN)
        assert second.ref.token != first.token
        assert self.state(first) is RunState.ABORTED
        assert self.ledger.store.newest("orders", "r1").ref == second.ref

    def test_other_input_under_the_same_name_is_refused(self):
        self.begin(fingerprint=b"\0one")
        assert self.ledger.store.newest("orders", "r1").fingerprint == b"\0one"
        self.again(fingerprint=b"\0one")
        self.again()
        with pytest.raises(RunInputChangedError, match="r1"):
            self.begin(fingerprint=b"two")

    def test_a_fingerprint_that_comes_later_is_kept(self):
        self.begin()
        self.again(fingerprint=b"one")
        with pytest.raises(RunInputChangedError):
            self.begin(fingerprint=b"two")

    def test_a_new_generation_may_have_other_input(self):
        self.ledger.abort(self.begin(fingerprint=b"one"))
        assert self.begin(fingerprint=b"two").generation == 2

    @pytest.mark.parametrize("lease_s", [0, -1, 1000, float("nan")])
    def test_a_lease_that_cannot_work_is_refused(self, lease_s):
        with pytest.raises((ConfigurationError, ValueError)):
            self.begin(lease_s=lease_s)

    def test_from_open_through_prepared_to_committed_and_each_step_twice(self):
        ref = self.begin()
        for _ in range(2):
            self.ledger.prepare(ref)
            assert self.state(ref) is RunState.PREPARED
        for _ in range(2):
            self.ledger.commit(ref, "out")
            assert self.state(ref) is RunState.COMMITTED
        self.ledger.prepare(ref)
        assert self.state(ref) is RunState.COMMITTED
        assert self.ledger.store.newest("orders", "r1").output_ref == "out"

    def test_an_open_run_cannot_be_committed(self):
        ref = self.begin()
        with pytest.raises(RunFencedError, match="OPEN"):
            self.ledger.commit(ref)

    def test_a_run_that_may_have_published_cannot_be_aborted(self):
        ref = self.lapsed()
        self.ledger.prepare(ref)
        for _ in range(2):
            with pytest.raises(RunFencedError, match=r"may have published|is final"):
                self.ledger.abort(ref)
            assert self.ledger.abort_lapsed(ref.token) is False
            self.ledger.commit(ref)

    def test_a_prepared_run_is_aborted_by_one_who_knows_that_nothing_is_published(self):
        (key,) = keys(1)
        paused = self.begin()
        assert self.claims(paused).decide([key]) == [RowVerdict.NEW]
        self.ledger.prepare(paused)
        person = self.again()
        with pytest.raises(RunFencedError, match="taken over"):
            self.ledger.abort(paused, unpublished=True)
        for _ in range(2):
            self.ledger.abort(person, unpublished=True)
            assert self.state(person) is RunState.ABORTED
        with pytest.raises(RunFencedError, match="ABORTED"):
            self.ledger.commit(paused)
        second = self.begin()
        assert second.generation == 2
        assert self.claims(second).decide([key]) == [RowVerdict.NEW]

    def test_a_committed_run_is_never_aborted(self):
        ref = self.committed("r1", keys(1))
        with pytest.raises(RunFencedError, match="is final"):
            self.ledger.abort(ref, unpublished=True)
        assert self.state(ref) is RunState.COMMITTED

    def test_an_aborted_run_is_fenced_for_good(self):
        ref = self.begin()
        for _ in range(2):
            self.ledger.abort(ref)
        for change in (self.ledger.prepare, self.ledger.commit, lambda ref: self.ledger.renew(ref, LONG_S)):
            with pytest.raises(RunFencedError, match="ABORTED"):
                change(ref)
        assert self.state(ref) is RunState.ABORTED

    def test_others_abort_only_what_has_lapsed_by_the_stores_clock(self):
        live, dead = self.begin("live"), self.lapsed()
        assert self.ledger.abort_lapsed(live.token) is False
        assert self.ledger.abort_lapsed(dead.token) is True
        assert self.ledger.abort_lapsed(dead.token) is False
        assert (self.state(live), self.state(dead)) == (RunState.OPEN, RunState.ABORTED)

    def test_a_renewed_or_resumed_run_has_not_lapsed(self):
        renewed, resumed = self.lapsed("one"), self.lapsed("two")
        assert self.ledger.store.newest("orders", "one").lapsed
        self.ledger.renew(renewed, LONG_S)
        self.begin("two")
        assert not self.ledger.store.newest("orders", "one").lapsed
        assert not self.ledger.abort_lapsed(renewed.token)
        assert not self.ledger.abort_lapsed(resumed.token)

    def test_what_the_store_does_not_know_is_an_error_and_no_verdict(self):
        stranger = RunRef("orders", "r1", 1, 4711, 1)
        assert self.state(stranger) is RunState.UNKNOWN
        assert self.ledger.rows([]) == {}
        assert self.ledger.abort_lapsed(4711) is False
        for call in (
            self.ledger.prepare,
            self.ledger.commit,
            self.ledger.abort,
            lambda ref: self.ledger.renew(ref, LONG_S),
            lambda ref: self.claims(ref).decide(keys(1)),
            lambda ref: self.handler(ref).acquire(keys(1)),
        ):
            with pytest.raises(StoreReplacedError):
                call(stranger)

    def test_a_run_too_old_for_the_retention_is_neither_prepared_nor_committed(self):
        late, published, done = self.begin("late"), self.begin("published"), self.committed("done", keys(1))
        self.ledger.prepare(published)
        forgetful = self.forgetful()
        with pytest.raises(ClaimsExpiredError, match="abort it and begin it again"):
            forgetful.prepare(late)
        # `publishing` prepares before it publishes: what cannot be committed is not published either.
        for step in (forgetful.prepare, forgetful.commit):
            with pytest.raises(ClaimsExpiredError, match=r"accept_loss.* runs abort published"):
                step(published)
        assert (self.state(late), self.state(published)) == (RunState.OPEN, RunState.PREPARED)
        forgetful.prepare(done)
        forgetful.commit(done)
        forgetful.commit(published, accept_loss=True)
        assert self.state(published) is RunState.COMMITTED
