"""The pages of docs/start/, as a reader follows them: the program in its file, each command, what it prints.

A page has one program. A line of a `console` block that begins with `$` is typed, and the lines below it are all that
it prints; those after `^C` come when it is stopped. Where the text before the block has the word "Among", it may print
other lines too, in any order. A command that is followed by "In another terminal" runs beside those that follow.
"""

from __future__ import annotations

import os
import re
import secrets
import signal
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from idempotent.testing.adapter_contract import until
from tests.adapters.kafka.broker import Broker
from tests.adapters.rabbitmq.rabbit import Rabbit
from tests.project.house import ROOT
from tests.support.services.process import free_port

PAGES = sorted((ROOT / "docs" / "start").glob("*.md"))
WITHIN_S = 300
MOST_WORDS = 400  # two screens
# What a page shows of a reader's servers, and the fixture of the one that stands in for it.
SERVERS = {
    "amqp://localhost": "rabbitmq_url",
    "stomp://user:password@localhost:61613": "stomp_url",
    "localhost:9092": "kafka_bootstrap",
    "redis://localhost": "redis_url",
}
SUBJECT, PORT = "orders.paid", "8000"
ENVIRON = {
    **os.environ,
    "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    "PYTHONUNBUFFERED": "1",  # as in a terminal
}


@dataclass(frozen=True)
class Command:
    typed: str
    shown: tuple[str, ...]
    is_chatty: bool
    goes_on: bool = False


@dataclass(frozen=True)
class Way:
    """What a reader takes from a page."""

    file: str
    program: str
    commands: tuple[Command, ...]


def read(page: str) -> Way:
    # Text and blocks take turns: the text before a block, its language, the block, and so on.
    parts = re.split(r"^```(\w*)\n(.*?)^```$", page, flags=re.MULTILINE | re.DOTALL)
    blocks = list(zip(parts[::3], parts[1::3], parts[2::3], parts[3::3], strict=False))
    ((before, program),) = [(before, block) for before, language, block, _ in blocks if language == "python"]
    (file, *_) = re.findall(r"`(\w+\.py)`", before)
    commands = []
    for before, language, block, after in blocks:
        if language == "console":
            for typed, shown in re.findall(r"^\$ (.+)\n((?:(?!\$ ).*\n)*)", block, flags=re.MULTILINE):
                commands.append(Command(typed, tuple(shown.splitlines()), is_chatty="Among" in before))
            if "In another terminal" in after:
                commands[-1] = replace(commands[-1], goes_on=True)
    return Way(file, program, tuple(commands))


class StandIns:
    """The servers of the tests in the place of those that a page shows; queues and a port that no other test has."""

    def __init__(self, page: str, request: pytest.FixtureRequest) -> None:
        self._used = {SUBJECT: f"orders-{secrets.token_hex(6)}", PORT: str(free_port())}
        for shown, fixture in SERVERS.items():
            if shown in page:
                self._used[shown] = request.getfixturevalue(fixture)

    def __getitem__(self, shown: str) -> str:
        return self._used[shown]

    def given(self, text: str) -> str:
        for shown, used in self._used.items():
            text = text.replace(shown, used)
        return text

    def taken_back(self, text: str) -> str:
        """What a page shows of a text that was printed; passwords are masked in both."""
        for shown, used in self._used.items():
            text = text.replace(_masked(used), _masked(shown)).replace(used, shown)
        return text


def _masked(url: str) -> str:
    return re.sub(r":[^:@/]+@", ":***@", url)


@contextmanager
def queues(page: str, stand_ins: StandIns) -> Iterator[None]:
    """Remove what the page makes on a broker that others use too."""
    if "localhost:9092" in page:
        let_producers_begin(Broker(stand_ins["localhost:9092"]))
    try:
        yield
    finally:
        if "amqp://localhost" in page:
            rabbit = Rabbit(stand_ins["amqp://localhost"])
            for suffix in ("", ".dead", ".retry.due"):
                rabbit.delete(stand_ins[SUBJECT] + suffix)
        if "localhost:9092" in page:
            broker = Broker(stand_ins["localhost:9092"])
            for topic in (stand_ins[SUBJECT], f"{stand_ins[SUBJECT]}.dlq"):
                broker.drop(topic)


def let_producers_begin(broker: Broker) -> None:
    """Wait until a new broker gives out producer ids: clients that ask for one too early complain."""
    topic = f"begin-{secrets.token_hex(6)}"
    broker.make(topic)
    broker.send(topic)
    broker.flush()
    broker.drop(topic)


class Terminal:
    """Runs one command, and reads what it prints."""

    def __init__(self, command: str, folder: Path) -> None:
        self._file = folder / f"{secrets.token_hex(4)}.out"
        with self._file.open("w") as output:
            self.process = subprocess.Popen(
                ["bash", "-c", command],
                cwd=folder,
                env=ENVIRON,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def printed(self) -> str:
        return self._file.read_text()

    def until(self, look: Callable[[], bool], what: str) -> None:
        """Wait until it is so."""
        try:
            until(lambda: look() or self.process.poll() is not None, what)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.printed}") from None
        assert look(), f"it ended before {what}:\n{self.printed}"

    def stop(self) -> None:
        """Ctrl-C, for all of its processes, as a terminal does."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGINT)
        self.wait()

    def wait(self) -> int:
        try:
            return self.process.wait(WITHIN_S)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it does not end:\n{self.printed}") from None

    def close(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def is_among(lines: tuple[str, ...], printed: str) -> bool:
    """Whether each of the lines is there as often as the page shows it."""
    return Counter(line for line in printed.splitlines() if line in lines) == Counter(lines)


def listens(port: str) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", int(port))) == 0


def run(command: Command, terminal: Terminal, stand_ins: StandIns) -> None:
    """Let it print what the page shows, and compare that."""
    before, is_stopped, after = _at_interrupt(command.shown)
    if is_stopped:
        terminal.until(
            lambda: is_among(before, stand_ins.taken_back(terminal.printed)), f"the lines {before}"
        )
        terminal.stop()
    else:
        assert terminal.wait() == 0, terminal.printed
    printed = stand_ins.taken_back(terminal.printed)
    if command.is_chatty:
        assert is_among(before + after, printed), printed
    else:
        assert printed.splitlines() == [*before, *after], command.typed


def _at_interrupt(shown: tuple[str, ...]) -> tuple[tuple[str, ...], bool, tuple[str, ...]]:
    if "^C" not in shown:
        return shown, False, ()
    place = shown.index("^C")
    return shown[:place], True, shown[place + 1 :]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_has_one_program_and_leads_on(page):
    text = page.read_text()
    assert read(text).commands
    assert len(text.split()) <= MOST_WORDS
    *_, end = text.strip().split("\n\n")
    assert re.fullmatch(r"(- \[.+\]\(.+\).*\n?){3}", end), end


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_reader_sees_what_the_page_shows(page, tmp_path, request):
    text = page.read_text()
    stand_ins = StandIns(text, request)
    way = read(text)
    (tmp_path / way.file).write_text(stand_ins.given(way.program))
    with queues(text, stand_ins), ExitStack() as terminals:
        for command in way.commands:
            if topic := re.search(r"^kafka-topics\.sh .* --create --topic (\S+)$", command.typed):
                Broker(stand_ins["localhost:9092"]).make(stand_ins.given(topic[1]))
                continue
            terminal = Terminal(f"exec {stand_ins.given(command.typed)}", tmp_path)
            terminals.callback(terminal.close)
            if not command.goes_on:
                run(command, terminal, stand_ins)
                continue
            terminals.callback(terminal.stop)
            if PORT in command.typed:
                terminal.until(lambda: listens(stand_ins[PORT]), "it listens")
