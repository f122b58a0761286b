"""`idempotent runs`, and what `keys stats`, `doctor` and `gc` say of runs."""

import json
import re
import shlex
import signal
from collections import Counter
from contextlib import closing, contextmanager

import pytest
from redis import Redis
from sqlalchemy import create_engine, text

from idempotent.adapters.spark import abort_run
from idempotent.adapters.spark.ledger import OnConflict, RunState
from idempotent.adapters.spark.ledger.aborting import abort_as_seen, end_lease_as_seen, existing
from idempotent.adapters.spark.ledger.run_claims import RowVerdict, RunClaims
from idempotent.adapters.spark.ledger.runs import this_driver
from idempotent.cli.terminal.output import me
from idempotent.errors import RunConflictError, RunFencedError, StoreBusyError, UnknownRunError
from tests.adapters.spark.ledger.ledgers import SHARED, open_place
from tests.adapters.spark.ledger.sparkless_driver import Job, key_hash, published, run_job
from tests.support.forked import Forked
from tests.support.logs import logged
from tests.worker.running import until

LEASE_S = 300.0


@pytest.fixture(params=SHARED)
def place(request, monkeypatch):
    with contextmanager(open_place)(request.param, request) as place:
        # A line to type names a URL with a password so.
        monkeypatch.setenv("VARIABLE", place.url)
        yield place


@pytest.fixture
def sqlite_place(request):
    with contextmanager(open_place)("sqlite", request) as place:
        yield place


@pytest.fixture
def ledger(place):
    return place.ledger()


def at(place):
    return [
        "--url",
        place.url,
        *(["--prefix", f"{place.name}:"] if place.kind == "redis" else ["--table", place.name]),
    ]


def begun(
    ledger, run_id, *, keys=0, rows=None, manifest=None, lives=False, consumer="orders", committed=False
):
    """A run with so many claims; PREPARED with `rows`."""
    ref = ledger.begin(consumer, run_id, lease_s=LEASE_S).ref
    hashes = [key_hash(f"{consumer} {run_id} {number}") for number in range(keys)]
    if hashes:
        assert set(RunClaims(ledger, ref).decide(hashes)) == {RowVerdict.NEW}
    if rows is not None or committed:
        ledger.prepare(ref, rows=rows, manifest=manifest)
    if committed:
        ledger.commit(ref, f"out/{run_id}")
    if not lives:
        ledger.end_lease(ref)
    return ref


def test_the_list_says_of_each_run_what_its_state_means_and_who_has_it(cli, place, ledger):
    ledger.abort(begun(ledger, "aborted", lives=True))
    begun(ledger, "committed", keys=3, committed=True)
    begun(ledger, "lives", lives=True)
    begun(ledger, "gone", consumer="bills")
    begun(ledger, "waits", keys=2, rows=2)
    answer = cli("runs", "list", *at(place))
    assert answer.code == 0
    heads, *rows = answer.out.splitlines()
    assert heads.split() == ["run", "consumer", "state", "lease", "driver", "began", "means"]
    assert [row.split()[0] for row in rows] == ["waits", "gone", "lives", "committed", "aborted"]
    assert all(this_driver() in row for row in rows)
    waits, gone, lives, committed, aborted = rows
    assert re.search(
        r"PREPARED +ended \d+ s ago .* nobody has renewed .* stands still, and may have published; other",
        waits,
    )
    assert re.search(r"OPEN +ended \d+ s ago .* a run that meets its keys aborts it", gone)
    # Of a driver that was killed a moment ago the ledger knows no more.
    assert re.search(r"OPEN +ends in (5|4) min .* evaluates its input, or was killed less than", lives)
    assert "its keys are duplicates" in committed
    assert "its keys are free" in aborted
    counted = cli("runs", "list", "--claims", "--json", *at(place)).lines
    assert {line["run_id"]: line["claims"] for line in counted} == {
        **dict.fromkeys(("aborted", "lives", "gone"), 0),
        "committed": 3,
        "waits": 2,
    }


def test_the_list_is_filtered_by_consumer_and_state_and_pages_by_key(cli, place, ledger):
    for consumer in ("orders", "orders:eu", "ord", "Größe %"):
        for number in range(3):
            begun(ledger, f"r{number}", consumer=consumer, committed=number == 2)

    def listed(*words):
        return Counter(
            (line["consumer"], line["state"]) for line in cli("runs", "list", "--json", *words).lines
        )

    assert listed(*at(place)).total() == 12
    assert listed("--consumer", "orders:eu", *at(place)) == {
        ("orders:eu", "open"): 2,
        ("orders:eu", "committed"): 1,
    }
    assert listed("--consumer", "Größe %", "--state", "committed", *at(place)) == {
        ("Größe %", "committed"): 1
    }
    assert listed("--state", "prepared", "--state", "aborted", *at(place)) == {}
    assert listed("--limit", "5", *at(place)).total() == 5
    first = cli("runs", "list", "--limit", "1", *at(place))
    assert len(first.out.splitlines()) == 2
    assert "The newest 1;" in first.err
    assert "No such run." in cli("runs", "list", "--state", "aborted", *at(place)).out
    assert cli("runs", "list", "--state", "half", *at(place)).code == 2


def test_more_runs_than_a_page_has_are_each_listed_once(cli, place):
    # As `insert_run` stores them, and quicker than 2,100 calls.
    names = [f"r{number}" for number in range(2100)]
    place.ledger().begin("orders", names[0], lease_s=LEASE_S)
    if place.kind == "redis":
        with closing(Redis.from_url(place.url)) as client, client.pipeline() as pipe:
            (name,) = client.scan_iter(match=f"{place.name}:run:*")
            row = client.hgetall(name)
            for number, run_id in enumerate(names[1:], start=1):
                pipe.hset(f"{place.name}:run:{number}", mapping={**row, b"k": f"orders:run:{run_id}"})
            pipe.execute()
    else:
        engine = create_engine(place.url)
        columns = "generation, state, epoch, lease_until, began_at, update_at, retention"
        copy = f"INSERT INTO {place.name}_runs (token, run_hash, k, {columns}) SELECT :n, :h, :k, {columns} FROM "
        with engine.begin() as db:
            (token,) = db.execute(text(f"SELECT token FROM {place.name}_runs")).one()
            rows = [
                {"n": number, "h": key_hash(number), "k": f"orders:run:{run_id}", "t": token}
                for number, run_id in enumerate(names[1:], start=1)
            ]
            db.execute(text(f"{copy} {place.name}_runs WHERE token = :t"), rows)
        engine.dispose()
    assert sorted(line["run_id"] for line in cli("runs", "list", "--json", *at(place)).lines) == sorted(names)
    assert cli("keys", "stats", "--json", *at(place)).lines[-1]["runs"]["open"] == 2100


def test_show_has_all_of_a_run_and_the_command_that_helps(cli, place, ledger):
    files = ["file:/etl/staging/1-1-1/a.parquet", "file:/etl/staging/1-1-1/b.parquet"]
    manifest = json.dumps([{"folder": "staging", "path": "staging/1-1-1", "files": files, "rows": 2}])
    begun(ledger, "it's", keys=2, rows=2, manifest=manifest.encode())
    words = ("runs", "show", "it's", "--consumer", "orders", *at(place))
    shown = cli(*words)
    assert shown.code == 0
    for part in (
        "state: PREPARED: nobody has renewed its lease: its driver is gone or stands still, and may have published",
        f"lease: the lease of driver {this_driver()} ended 0 s ago",
        "claims: 2",
        "staged: file:/etl/staging/1-1-1: 2 files, 2 rows",
        "it publishes what is staged",
    ):
        assert part in shown.out
    assert "lapsed" not in shown.out
    line = cli(*words, "--json").line
    assert (line["manifest"], line["state"], line["lapsed"]) == (json.loads(manifest), "prepared", True)
    typed = re.search(r"idempotent (runs abort .*)", shown.out)
    assert typed is not None
    assert cli(*shlex.split(typed[1]), "--yes").code == 0
    shown = cli(*words)
    assert "state: ABORTED: it does not count" in shown.out
    assert "lease" not in shown.out
    assert cli(*words, "--json").line["lease_until"] is None


def test_show_says_what_a_living_lease_means_and_what_a_begin_of_a_run_of_effects_does(cli, sqlite_place):
    ledger = sqlite_place.ledger()
    begun(ledger, "lives", rows=0, lives=True)
    begun(ledger, "effects", rows=0, manifest=b"[]")
    lives, effects = (
        cli("runs", "show", each, "--consumer", "orders", *at(sqlite_place)).out
        for each in ("lives", "effects")
    )
    assert f"lease: driver {this_driver()} has it until 20" in lives
    assert "its lease lives: a driver publishes its output, or was killed less than lease_s ago" in lives
    assert "goes over its effects without repeating one, and commits" in effects
    assert "it publishes what is staged" not in effects
    assert "runs abort effects --consumer orders --unpublished --url" in effects


def test_what_no_run_has_staged_is_shown_as_it_is(cli, sqlite_place):
    begun(sqlite_place.ledger(), "r1", rows=0, manifest=b"\xfftwo files")
    assert (
        r"staged: \xfftwo files" in cli("runs", "show", "r1", "--consumer", "orders", *at(sqlite_place)).out
    )


def test_abort_ends_what_no_driver_has_and_nothing_else(cli, place, ledger, caplog):
    refs = {
        "gone": begun(ledger, "gone", keys=2),
        "lives": begun(ledger, "lives", lives=True),
        "waits": begun(ledger, "waits", keys=2, rows=2),
        "publishes": begun(ledger, "publishes", rows=0, lives=True),
        "committed": begun(ledger, "committed", committed=True),
    }

    def abort(run_id, *words, answer=None):
        return cli("runs", "abort", run_id, "--consumer", "orders", *words, *at(place), input=answer)

    def states():
        return {name: ledger.row(ref.token).state.name for name, ref in refs.items()}

    before = states()
    for words, run_id, error in (
        ((), "lives", rf"{this_driver()} has it until 20\d\d-.*\n.*runs end-lease lives --consumer orders"),
        (("--unpublished", "--yes"), "publishes", "another driver has it"),
        # Not that --unpublished is missing: with it the lease would be in the way.
        ((), "publishes", r"another driver has it.*\n.*runs end-lease publishes --consumer orders"),
        ((), "waits", r"may have published.* with --unpublished.*\n.*runs abort waits .* --unpublished"),
        (("--unpublished", "--yes"), "committed", "which is final"),
        (("--unpublished", "--yes"), "wait", "has no run 'wait' of consumer 'orders'"),
    ):
        answer = abort(run_id, *words)
        assert answer.code == 1, answer
        assert re.search(error, answer.err), answer.err
    assert abort("waits", "--unpublished", answer="n\n").code == 1
    assert states() == before
    assert ledger.store.newest("orders", "wait") is None, "a typo made a run"

    answer = abort("gone", "--json")
    assert (answer.code, answer.line) == (
        0,
        {"consumer": "orders", "run_id": "gone", "was": "open", "changed": True},
    )
    assert "had been aborted before" in abort("gone").out
    (told,) = logged(caplog, "run_aborted")
    assert (told.run, told.by) == (str(refs["gone"]), me())
    answer = abort("waits", "--unpublished", answer="y\n")
    assert answer.code == 0
    assert (
        "every driver of it dead, one that was paused too? Then abort it, and free its 2 keys" in answer.err
    )
    assert states() == {**before, "gone": "ABORTED", "waits": "ABORTED"}
    assert ledger.begin("orders", "waits", lease_s=LEASE_S).ref.generation == 2


def test_a_run_that_a_driver_begins_while_a_person_thinks_is_left_alone(cli, place, ledger):
    ref = begun(ledger, "waits", rows=0)
    seen = existing(ledger, "orders", "waits")
    ledger.begin("orders", "waits", lease_s=LEASE_S)
    with pytest.raises(StoreBusyError, match="changed"):
        abort_as_seen(ledger, seen, unpublished=True, by="me")
    assert ledger.row(ref.token).state is RunState.PREPARED


def test_end_lease_ends_that_of_the_attempt_that_was_seen_and_nothing_else(cli, place, ledger):
    refs = {
        "lives": begun(ledger, "lives", keys=2, lives=True),
        "publishes": begun(ledger, "publishes", rows=0, lives=True),
        "gone": begun(ledger, "gone"),
        "committed": begun(ledger, "committed", committed=True),
    }

    def end(run_id, *words, answer=None):
        return cli("runs", "end-lease", run_id, "--consumer", "orders", *words, *at(place), input=answer)

    def lapsed():
        return {run_id for run_id in refs if ledger.store.newest("orders", run_id).lapsed}

    before = lapsed()
    for words, run_id, error in (
        (("--yes",), "committed", "is COMMITTED, which is final, and has no lease"),
        (("--yes",), "liv", "has no run 'liv' of consumer 'orders'"),
        ((), "lives", f"Has the process {this_driver()} ended.*"),
    ):
        answer = end(run_id, *words, answer="n\n")
        assert answer.code == 1, answer
        assert re.search(error, answer.err), answer.err
    answer = end("gone")
    assert answer.code == 0
    assert f"Nothing to do: the lease of driver {this_driver()} ended" in answer.out
    assert lapsed() == before

    assert end("lives", answer="y\n").code == 0
    assert end("publishes", "--yes", "--json").line["changed"]
    assert {"lives", "publishes"} <= lapsed()
    # Their drivers lived after all. One renews its lease, and has lost nothing.
    ledger.renew(refs["lives"], LEASE_S)
    ledger.commit(refs["publishes"])
    with pytest.raises(RunConflictError, match=r"another driver has it.* runs end-lease lives"):
        ledger.begin("orders", "lives", lease_s=LEASE_S)
    ledger.prepare(refs["lives"], rows=2)


def test_the_lease_of_a_driver_that_renews_it_while_a_person_thinks_lives_on(place, ledger):
    ref = begun(ledger, "lives", lives=True)
    seen = existing(ledger, "orders", "lives")
    ledger.renew(ref, LEASE_S + 1)
    with pytest.raises(RunConflictError, match="its driver lives, and has renewed"):
        end_lease_as_seen(ledger, seen)
    assert not ledger.store.newest("orders", "lives").lapsed
    seen = existing(ledger, "orders", "lives")
    ledger.begin("orders", "lives", lease_s=LEASE_S, takeover=True)
    with pytest.raises(StoreBusyError, match="changed"):
        end_lease_as_seen(ledger, seen)
    assert not ledger.store.newest("orders", "lives").lapsed


def test_the_same_in_python_begins_no_run(place, ledger, caplog):
    begun(ledger, "gone")
    begun(ledger, "lives", lives=True)
    begun(ledger, "waits", rows=0)
    with pytest.raises(UnknownRunError, match="has no run 'gon' of consumer 'orders'"):
        abort_run(place.config(), consumer="orders", run_id="gon")
    with pytest.raises(RunConflictError, match="another driver has it"):
        abort_run(place.config(), consumer="orders", run_id="lives")
    with pytest.raises(RunFencedError, match="may have published"):
        abort_run(place.config(), consumer="orders", run_id="waits")
    assert abort_run(place.config(), consumer="orders", run_id="waits", unpublished=True)
    assert abort_run(place.config(), consumer="orders", run_id="gone")
    assert not abort_run(place.config(), consumer="orders", run_id="gone")
    assert [told.by for told in logged(caplog, "run_aborted")] == [f"abort_run in {this_driver()}"] * 2
    assert len([*ledger.store.listed(RunState)]) == 3


def test_gc_takes_what_has_expired_and_aborted_runs_claims_and_leaves_the_rest(cli, sqlite_place):
    ledger = sqlite_place.ledger()
    ledger.abort(begun(ledger, "aborted", keys=3, lives=True))
    begun(ledger, "open", keys=2)
    begun(ledger, "waits", keys=2, rows=2)
    begun(ledger, "committed", keys=2, committed=True)
    assert cli("runs", "gc", "--json", *at(sqlite_place)).line == {"claims": 3, "runs": 0, "aborted": 0}
    assert "0 claims of runs deleted" in cli("runs", "gc", *at(sqlite_place)).out
    counted = cli("runs", "list", "--claims", "--json", *at(sqlite_place)).lines
    assert {line["run_id"]: line["claims"] for line in counted} == {
        "aborted": 0,
        "open": 2,
        "waits": 2,
        "committed": 2,
    }


def test_gc_counts_all_that_it_did(cli, sqlite_place):
    ledger = sqlite_place.ledger()
    for number in range(3):
        begun(ledger, f"committed {number}", keys=1, committed=True)
    begun(ledger, "left")
    begun(ledger, "waits", rows=0)
    engine = create_engine(sqlite_place.url)
    with engine.begin() as db:
        # Long ago; only ended runs expire.
        db.execute(
            text(
                f"UPDATE {sqlite_place.name}_runs SET began_at = 1, lease_until = 1, expires_at = expires_at / 2"
            )
        )
    engine.dispose()
    said = cli("runs", "gc", *at(sqlite_place)).out
    assert "Done: 3 runs and 3 claims of runs deleted, 1 run without a driver aborted." in said
    assert "0 runs and 0 claims" in cli("gc", "--runs", *at(sqlite_place)).out


def test_keys_list_of_a_consumer_of_spark_names_the_list_of_its_runs(cli, sqlite_place):
    begun(sqlite_place.ledger(), "one", consumer="c 1")
    refused = cli("keys", "list", "--consumer", "c 1", *at(sqlite_place))
    assert refused.code == 2
    (line,) = cli(*typed(refused.err), *at(sqlite_place), "--json").lines
    assert line["run_id"] == "one"


def test_keys_stats_knows_runs(cli, place, ledger):
    assert cli("keys", "stats", *at(place)).out == "No keys yet.\n"
    begun(ledger, "one", committed=True)
    begun(ledger, "two", committed=True)
    begun(ledger, "three", rows=0)
    said = cli("keys", "stats", *at(place)).out
    assert "runs of Spark, whose keys are not counted here: 2 committed, 1 prepared." in said
    runs = cli("keys", "stats", "--json", *at(place)).line["runs"]
    assert {state: number for state, number in runs.items() if number} == {"prepared": 1, "committed": 2}
    typed = re.search(r"idempotent (runs list .*)", said)
    assert typed is not None
    assert len(cli(*shlex.split(typed[1]), "--json").lines) == 3


def kill_a_publishing_driver(place, tmp_path, lease_s):
    """Its pid, and the folder to which it publishes."""
    output = tmp_path / "out"
    output.mkdir()
    job = Job(
        place.config(), "2026-11-28", range(300), str(output), lease_s=lease_s, kill_at="half published"
    )
    driver = Forked(run_job, job, folder=tmp_path)
    try:
        assert driver.wait(150) == -signal.SIGKILL, driver.err
    finally:
        driver.close()
    return driver.pid, output


def typed(said):
    """The command that is printed."""
    found = re.search(r"idempotent (runs [^\n]*)", said)
    assert found is not None, said
    return shlex.split(found[1])


@pytest.mark.slow
@pytest.mark.parametrize("way_out", ["begin again", "abort"])
def test_a_driver_killed_while_it_publishes_is_found_understood_and_mended(cli, place, tmp_path, way_out):
    """With nothing but the commands that are printed."""
    pid, output = kill_a_publishing_driver(place, tmp_path, lease_s=0.5)

    def found():
        lines = cli("doctor", *at(place), "--json").lines
        return [line for line in lines if "Spark's runs" in line["what"]]

    until(found)
    (waits,) = found()
    assert waits["level"] == "warning"
    assert "nobody has renewed the lease for up to" in waits["what"]
    assert "PREPARED" in waits["what"]
    assert "orders '2026-11-28'" in waits["what"]
    shown = cli(*typed(waits["hint"]))
    assert shown.code == 0
    assert f"the lease of driver {this_driver().rpartition(':')[0]}:{pid} ended" in shown.out
    assert "claims: 300" in shown.out
    if way_out == "abort":
        assert not published(output), "nothing of it is published"
        assert cli(*typed(shown.out), "--yes").code == 0
    again = Job(place.config(), "2026-11-28", range(300), str(output))
    run_job(again)
    assert published(output) == {"2026-11-28": [*range(300)]}
    line = cli("runs", "show", "2026-11-28", "--consumer", "orders", "--json", *at(place)).line
    assert (line["state"], line["generation"]) == ("committed", 1 if way_out == "begin again" else 2)
    assert not found()


@pytest.mark.slow
@pytest.mark.parametrize("way_out", ["begin again", "abort"])
def test_whoever_has_seen_that_a_driver_was_killed_need_not_wait_for_its_lease(cli, place, tmp_path, way_out):
    """With a lease of the default length, and nothing but the commands that are printed."""
    pid, output = kill_a_publishing_driver(place, tmp_path, LEASE_S)
    (line,) = cli("runs", "list", "--state", "prepared", "--json", *at(place)).lines
    assert (line["lapsed"], line["driver"].rpartition(":")[2]) == (False, str(pid))
    run = ("2026-11-28", "--consumer", "orders", *at(place))
    shown = cli("runs", "show", *run)
    assert "or was killed less than lease_s ago" in shown.out
    refused = cli("runs", "abort", *run)
    assert refused.code == 1
    assert typed(refused.err) == typed(shown.out)[: len(typed(refused.err))]
    ended = cli(*typed(shown.out), input="y\n")
    assert ended.code == 0
    assert f":{pid} ended?" in ended.err
    assert cli("runs", "show", *run, "--json").line["lapsed"]
    if way_out == "abort":
        assert cli(*typed(ended.out), "--yes").code == 0
    run_job(Job(place.config(), "2026-11-28", range(300), str(output)))
    assert published(output) == {"2026-11-28": [*range(300)]}
    line = cli("runs", "show", *run, "--json").line
    assert (line["state"], line["generation"]) == ("committed", 1 if way_out == "begin again" else 2)


@pytest.mark.parametrize("consumer", ["orders", "Größe %", "c" * 300])
def test_a_long_run_id_is_typed_as_the_list_and_the_errors_show_it(cli, place, ledger, consumer):
    # The escaped character is where the name is cut.
    long = "s3://bucket/" + "%" * 60 + "y" * 240
    begun(ledger, long, consumer=consumer, keys=1, lives=True)
    begun(ledger, long + "z", consumer=consumer)
    lines = cli("runs", "list", "--json", *at(place)).lines
    assert len({line["run_id"] for line in lines}) == 2
    (run_id,) = {line["run_id"] for line in lines if not line["lapsed"]}
    assert run_id != long
    other = ledger.begin(consumer, "other", lease_s=LEASE_S).ref
    with pytest.raises(RunConflictError) as raised:
        RunClaims(ledger, other, on_conflict=OnConflict.FAIL).decide([key_hash(f"{consumer} {long} 0")])
    _, *typed = shlex.split(str(raised.value).partition("Type: ")[2])
    assert cli(*typed, "--json", *at(place)).line["claims"] == 1
    shown = next(line["consumer"] for line in lines)
    for name in {consumer, shown}:
        assert cli("runs", "end-lease", run_id, "--consumer", name, "--yes", *at(place)).code == 0
    # A hash alone is no name, and neither is that of another consumer's run.
    for wrong in ((run_id[-40:], consumer), (f"~{run_id[-40:]}", consumer), (run_id, "bills")):
        answer = cli("runs", "abort", wrong[0], "--consumer", wrong[1], "--yes", *at(place))
        assert (answer.code, "has no run" in answer.err) == (1, True), wrong
    assert cli("runs", "abort", run_id, "--consumer", consumer, "--yes", *at(place)).code == 0
    assert ledger.store.newest(consumer, long).state is RunState.ABORTED
    assert ledger.store.newest(consumer, long + "z").state is RunState.OPEN
