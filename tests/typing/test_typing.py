"""A type checker knows the consumers of handlers, and refuses handlers that `@consumer` refuses."""

from __future__ import annotations

import inspect
import re
import sys
from enum import Enum
from pathlib import Path

import pytest

from idempotent import Registry
from idempotent.adapters.activemq.adapter import StompAdapter
from idempotent.adapters.kafka.adapter import KafkaAdapter
from idempotent.adapters.rabbitmq.adapter import RabbitMqAdapter
from idempotent.adapters.spark.run import IdempotentRun
from idempotent.adapters.spark.streaming import foreach_batch
from idempotent.errors import ConfigurationError
from idempotent.outbox.relays.relay import Relay
from idempotent.registry import ConsumerSettings
from tests.project.house import ROOT
from tests.typing.checkers import Report, run_mypy, run_pyright

HERE = Path(__file__).parent
RIGHT, WRONG = HERE / "right.py", HERE / "wrong.py"
# Spark's types say little, and each of its files costs seconds; Django has none.
EXAMPLES = [
    path for path in (ROOT / "examples").glob("*.py") if not {"spark", "django"} & {*path.stem.split("_")}
]


@pytest.fixture(scope="module", params=["mypy", "pyright"])
def checker(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def report(checker: str) -> Report:
    run = run_mypy if checker == "mypy" else run_pyright
    return run([RIGHT, WRONG, *EXAMPLES])


def comments(file: Path, word: str) -> dict[int, str]:
    """What the comments `# word: ...` say, by line."""
    lines = enumerate(file.read_text().splitlines(), 1)
    return {number: found[1] for number, line in lines if (found := re.search(f"# {word}: (.*)", line))}


@pytest.mark.slow
def test_a_right_handler_makes_a_type_checker_say_nothing(report: Report) -> None:
    for file in (RIGHT, *EXAMPLES):
        assert not report.of(file), file


@pytest.mark.slow
def test_a_wrong_handler_is_refused_where_it_is_declared(report: Report, checker: str) -> None:
    which = ("mypy", "pyright").index(checker)
    expected = {line: said.split()[which] for line, said in comments(WRONG, "refused").items()}
    found = report.of(WRONG)
    assert len(expected) > 20
    assert found.keys() == expected.keys()
    assert not {line: found[line] for line, code in expected.items() if code not in found[line]}


@pytest.mark.slow
@pytest.mark.parametrize("checker", ["pyright"], indirect=True)
def test_an_editor_shows_what_a_consumer_wraps(report: Report) -> None:
    assert comments(RIGHT, "shown")
    assert {line: report.shown[RIGHT.name, line] for line in comments(RIGHT, "shown")} == comments(
        RIGHT, "shown"
    )


def test_a_type_checker_knows_the_texts_that_stand_for_the_members_of_an_enum() -> None:
    callables = [
        Registry.consumer,
        Relay,
        RabbitMqAdapter,
        StompAdapter,
        KafkaAdapter,
        IdempotentRun.begin,
        foreach_batch,
    ]
    found = {}
    for each in callables:
        names = vars(sys.modules[each.__module__])
        for parameter in inspect.signature(each).parameters.values():
            kind = names.get(str(parameter.annotation).partition(" | ")[0])
            if isinstance(kind, type) and issubclass(kind, Enum):
                texts = re.search(r"Literal\[(.*)\]", parameter.annotation)
                assert texts, (each, parameter)
                found[parameter.name] = {text.strip(" '\"") for text in texts[1].split(",")}
                assert found[parameter.name] == {member.value for member in kind}, (each, parameter)
    # This one is a callable too, so its enum stands in the name of its type.
    assert "'retry', 'park'" in str(inspect.signature(Registry.consumer).parameters["on_expired_lease"])
    assert found.keys() == {
        "on_missing_key",
        "on_store_error",
        "on_cancel",
        "on_parked",
        "ack",
        "queue_type",
        "semantics",
        "ordering",
        "on_conflict",
    }


def test_the_settings_for_type_checkers_are_the_parameters_of_the_decorator() -> None:
    parameters = dict(inspect.signature(Registry.consumer).parameters)
    for name in ("self", "subject", "checker", "batch"):
        del parameters[name]
    assert {name: parameter.annotation for name, parameter in parameters.items()} == {
        name: reference.__forward_arg__ for name, reference in ConsumerSettings.__annotations__.items()
    }


def test_what_a_type_checker_refuses_is_refused_at_run_time_too() -> None:
    """Declares the wrong handlers, one after the other. The type of a message is read by type checkers alone."""
    source = WRONG.read_text()
    blocks = re.findall(
        r"^@registry.*# refused.*\n(?:async )?def [\s\S]*?(?=\n\n\n|\Z)", source, re.MULTILINE
    )
    assert len(blocks) > 20
    only_types = ("takes_a_text", "list_without_batch", "one_message_of_a_batch")
    for block in blocks:
        names: dict[str, object] = {}
        exec(source.partition("\n@registry")[0], names)
        if not any(name in block for name in only_types):
            with pytest.raises(ConfigurationError):
                exec(block, names)
