"""Every snippet of the README and the docs, and every example, runs."""

from __future__ import annotations

import gzip
import inspect
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
from sybil import Example, Sybil
from sybil.parsers.markdown import CodeBlockParser, PythonCodeBlockParser

from idempotent import Backoff, Registry, Worker
from idempotent.adapters.rabbitmq.topology import DELAYS_MS
from idempotent.checkers import (
    MemoryChecker,
    OffsetChecker,
    RedisChecker,
    SqlChecker,
    TransactionalSqlChecker,
    checker_from_url,
)
from idempotent.claims import ClaimRequest, Failure
from idempotent.keys import KeySpace
from idempotent.migrations import upgrade
from idempotent.stores.redis.faults import COMMANDS as REDIS_COMMANDS
from tests.cli.shop import CONSUMERS
from tests.project import architecture
from tests.project.house import ROOT, name_of
from tests.support.privileges import SQL as SQL_PRIVILEGES

PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
LANGUAGES = {"python", "sh", "console", "text", "mermaid"}
# Pages whose other snippets have a test of their own, in tests/pages/.
MORE_LANGUAGES = {
    "cookbook.md": {"sql"},
    "kubernetes.md": {"yaml", "ini"},
    "metrics.md": {"yaml"},
    "privileges.md": {"sql"},
}
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
BILLING = KeySpace("orders.paid", "billing")
# What a page shows of other people's servers, and what stands in for it. Order matters: the longest first.
STAND_INS = {
    "transactional+postgresql+psycopg://user@host/shop": "transactional+sqlite:///app.db",
    "postgresql+psycopg://user@host/shop": "sqlite:///app.db",
    "postgresql+psycopg://shop@localhost/shop": "sqlite:///app.db",
    "redis://localhost": "{redis}",
    "amqp://broker": "{rabbitmq}",
    "amqp://localhost": "memory://docs?until_empty=true",
    "/data/orders.jsonl": "orders.jsonl",
}
# Calls the test functions of a page, those with the fixtures of this repository left out.
RUN_TESTS = """
import inspect, pathlib
for name, test in list(globals().items()):
    if name.startswith("test_"):
        match list(inspect.signature(test).parameters):
            case []:
                test()
            case ["tmp_path"]:
                folder = pathlib.Path(name).absolute()
                folder.mkdir()
                test(folder)
"""


def _run(paths: list[Path]) -> list[Any]:
    """Each with its name; what starts Spark is slow."""
    return [
        pytest.param(path, id=name_of(path), marks=[pytest.mark.slow] if "spark" in path.name else [])
        for path in paths
    ]


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the files that the pages talk about."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "__init__.py").touch()
    (tmp_path / "shop" / "consumers.py").write_text(
        CONSUMERS.replace("mail = Registry()", "mail = registry = Registry()")
    )
    lines = '{"id": "1", "subject": "orders.paid", "body": {"cents": 100}}\n'
    (tmp_path / "orders.jsonl").write_text(lines)
    (tmp_path / "processed.jsonl").write_text(lines)
    (tmp_path / "dump.gz").write_bytes(gzip.compress(lines.encode()))
    return tmp_path


@pytest.mark.parametrize("page", _run(PAGES))
def test_the_python_of_a_page_runs(page: Path, shop: Path) -> None:
    """In a process of its own: pages decorate into the default registry, and one stops the Spark session."""
    document = Sybil([PythonCodeBlockParser()]).parse(page)
    program = "\n".join(str(example.parsed) for example in document.examples())
    if program:
        run_python("-c", program + RUN_TESTS, timeout_s=300)


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_the_commands_of_a_page_run(page: Path, shop: Path, request: pytest.FixtureRequest) -> None:
    document = Sybil([CodeBlockParser("sh", run_block)]).parse(page)
    document.namespace["request"] = request
    for example in document.examples():
        example.evaluate()


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_a_page_has_no_snippet_that_nothing_runs(page: Path) -> None:
    languages = re.findall(r"^ *```(\w*)$", page.read_text(), flags=re.MULTILINE)
    assert set(languages[::2]) <= LANGUAGES | MORE_LANGUAGES.get(page.name, set())


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_the_make_targets_of_a_page_exist(page: Path) -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"^\$ make (\w+)", page.read_text(), flags=re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE), target


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_the_tests_that_a_page_names_exist(page: Path) -> None:
    sources = [*(ROOT / "tests").rglob("*.py"), *(ROOT / "idempotent" / "testing").rglob("*.py")]
    known = {name for source in sources for name in re.findall(r"def (test_\w+)", source.read_text())}
    assert set(re.findall(r"`(test_\w+)`", page.read_text())) <= known


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_the_links_of_a_page_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), target


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_the_links_within_pages_lead_to_a_heading(page: Path) -> None:
    for target, anchor in re.findall(r"\]\(([^)#:]*)#([^)]+)\)", page.read_text()):
        assert anchor in _anchors((page.parent / target) if target else page), f"{target}#{anchor}"


def _anchors(page: Path) -> set[str]:
    """The headings of a page as GitHub names them in links."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), flags=re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_the_files_that_a_page_names_exist(page: Path) -> None:
    """`adapters/NAME/` stands for any broker: words in capitals are a reader's to fill in."""
    tops = "idempotent|adapters|migrations|tests|docs|examples|[.]ci"
    named = re.findall(rf"`((?:{tops})/[\w./-]*)`", page.read_text())
    assert not [path for path in named if not re.search("[A-Z]", path) and not (ROOT / path).exists()]


def test_the_index_of_the_decisions_has_each_with_its_title() -> None:
    index = ROOT / "docs" / "decisions" / "README.md"
    titles = {page.name: _title(page) for page in index.parent.glob("[0-9]*.md")}
    assert (
        dict(re.findall(r"^- \[\d+\]\(([\w.-]+)\): (.+?)(?: \(.+)?$", index.read_text(), re.MULTILINE))
        == titles
    )


def _title(page: Path) -> str:
    """Without the decision's number."""
    return re.sub(r"^# \d+[.:] ", "", page.read_text().partition("\n")[0])


def test_the_picture_of_the_floors_is_that_of_the_code() -> None:
    page = architecture.PAGE.read_text()
    assert page == architecture.drawn(page), "run `make architecture` and commit docs/architecture.md"


@pytest.mark.parametrize("example", _run(EXAMPLES))
def test_an_example_runs(example: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_python(str(example), timeout_s=300)


def run_python(*arguments: str, timeout_s: float) -> str:
    """What a program prints; Spark's JVM takes its time."""
    done = subprocess.run(
        [sys.executable, "-W", "error", *arguments],
        check=False,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout_s,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def run_block(example: Example) -> None:
    """Run the lines of one block in bash, each over a store with a dead key; exported variables stay."""
    request: pytest.FixtureRequest = example.namespace["request"]
    environ = {
        **os.environ,
        **example.namespace.setdefault("exported", {}),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    for line in str(example.parsed).replace("\\\n", " ").splitlines():
        match shlex.split(line, comments=True):
            case []:
                pass
            case ["pip", "install", requirement, *_]:
                assert_extras_exist(requirement)
            case ["export", setting]:
                name, _, url = setting.partition("=")
                if name == "IDEMPOTENT_BROKER":
                    environ[name] = example.namespace["exported"][name] = stood_in(url, request)
                    continue
                checker_from_url(url).close()  # a URL that is understood; its server is somebody else's
                if url.startswith("sqlite:"):
                    environ[name] = example.namespace["exported"][name] = url
            case _:
                fresh_store()
                run_line(line, environ, request)


def fresh_store() -> None:
    Path("app.db").unlink(missing_ok=True)
    upgrade("sqlite:///app.db")
    checker = SqlChecker("sqlite:///app.db")
    claim = checker.protocol.claim(ClaimRequest(BILLING.key("4711"))).claim
    assert claim
    checker.protocol.release(claim, Failure("no such customer", max_attempts=1))
    checker.close()


def stood_in(text: str, request: pytest.FixtureRequest) -> str:
    """The text with servers of the tests in the place of those that a page names."""
    for shown, used in STAND_INS.items():
        if shown in text:
            text = text.replace(shown, used.format_map(Servers(request)))
    return text


def run_line(line: str, environ: dict[str, str], request: pytest.FixtureRequest) -> None:
    # Paging and filtering the output is not ours, and jq need not be here.
    command = stood_in(re.sub(r"\| *jq .*", "", line), request)
    done = subprocess.run(
        ["bash", "-c", command],
        check=False,
        env=environ,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )
    # 1: there is something to look at, such as the dead key.
    assert done.returncode in (0, 1), f"{command} -> {done.returncode}\n{done.stdout}{done.stderr}"
    assert "Traceback" not in done.stderr, done.stderr


class Servers(dict[str, str]):
    """The URL of a server by its name; only those that are asked for are started."""

    def __init__(self, request: pytest.FixtureRequest) -> None:
        self._request = request

    def __missing__(self, name: str) -> str:
        return str(self._request.getfixturevalue(f"{name}_url"))


def assert_extras_exist(requirement: str) -> None:
    name, extras = re.fullmatch(r"([\w-]+)(?:\[([\w,]+)\])?", requirement).groups()  # type: ignore[union-attr]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert name == project["name"]
    assert set(extras.split(",") if extras else ()) <= set(project["optional-dependencies"])


def test_the_permissions_of_a_consumer_are_those_that_the_contract_runs_with():
    page = (ROOT / "docs" / "migrations.md").read_text()
    assert f"`{REDIS_COMMANDS}`" in page
    assert f"`{SQL_PRIVILEGES}` on the tables" in page


def _written(default: object) -> str:
    match default:
        case Enum():
            return f'"{default.value}"'
        case str():
            return f'"{default}"'
        case tuple():
            return f"({', '.join(each.__name__ for each in default)}{',' if len(default) == 1 else ''})"
    return repr(default)


def _defaults(function: Callable[..., object]) -> dict[str, str]:
    parameters = inspect.signature(function).parameters.values()
    return {each.name: _written(each.default) for each in parameters if each.default is not each.empty}


def _shown(page: str, heading: str) -> dict[str, str]:
    """The options and defaults in the first two columns of the table below a heading."""
    section = (ROOT / "docs" / page).read_text().split(f"\n## {heading}\n")[1].partition("\n## ")[0]
    return dict(re.findall(r"^\| `(\w+)` \| `(.+?)` \|", section, re.MULTILINE))


def test_the_defaults_of_a_worker_are_those_of_the_code():
    assert _shown("workers.md", "The options") == _defaults(Worker)


def test_the_defaults_of_the_checkers_are_those_of_the_code():
    checkers = (SqlChecker, RedisChecker, MemoryChecker, TransactionalSqlChecker, OffsetChecker)
    options = {name: default for checker in checkers for name, default in _defaults(checker).items()}
    del options["clock"]  # for tests
    assert _shown("reference/consumers.md", "Options of the checkers") == options


def test_the_defaults_of_a_consumer_are_those_of_the_code():
    page = (ROOT / "docs" / "consumers.md").read_text()
    assert _shown("consumers.md", "The options") == _defaults(Registry.consumer)
    backoff = Backoff()
    written = (
        f"initial_s={backoff.initial_s:g}, maximum_s={backoff.maximum_s:g}, multiplier={backoff.multiplier:g}"
    )
    assert f"`Backoff({written}, jitter={backoff.jitter:g})`" in page
    delays = [
        backoff.longest_s(attempt) for attempt in range(1, int(_defaults(Registry.consumer)["max_attempts"]))
    ]
    on_rabbitmq = sum(next(each / 1000 for each in DELAYS_MS if each >= 1000 * delay) for delay in delays)
    assert f"about {sum(delays):g} seconds" in page
    assert f"rounds them up](reference/rabbitmq.md#queues), {on_rabbitmq:g}." in page
