"""What goes to another process: consumers, as functions do, and errors with all that they say."""

from __future__ import annotations

import copy
import pickle
import re
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from importlib import import_module
from multiprocessing import get_context

import pytest

from idempotent import Message, Outcome, Registry, Result
from idempotent.checkers import MemoryChecker
from idempotent.errors import IdempotentError, MissingExtraError, PublishError
from tests.project.house import ROOT

registry = Registry()
make = partial(registry.consumer, checker=MemoryChecker())


@make("orders")
def plain(message):
    return message.id


@make("orders", group="async")
async def awaited(message):
    return message.id


@make("orders", group="batch", batch=True)
def batch(messages):
    pass


class Shop:
    @staticmethod
    @make("orders", group="nested")
    def nested(message):
        pass


def undecorated(message, cents=1):
    pass


renamed = make("orders", group="renamed")(undecorated)
of_a_partial = make("orders", group="partial")(partial(undecorated, cents=2))


@pytest.mark.parametrize("consumer", [plain, awaited, batch, Shop.nested], ids=lambda each: each.name)
def test_a_consumer_is_pickled_and_copied_as_its_function_would_be(consumer):
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        assert pickle.loads(pickle.dumps(consumer, protocol)) is consumer
    assert pickle.loads(pickle.dumps(consumer.process)).__self__ is consumer
    assert copy.copy(consumer) is copy.deepcopy(consumer) is consumer


def test_a_process_pool_runs_a_consumer():
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        results = list(pool.map(plain.process, [Message("orders", id="1")] * 2, chunksize=2))
    assert [(result.outcome, result.value) for result in results] == [
        (Outcome.PROCESSED, "1"),
        (Outcome.DUPLICATE, None),
    ]


def local():
    @make("orders", group="local")
    def handle(message):
        pass

    return handle


@pytest.mark.parametrize(
    ("consumer", "path"),
    [
        (renamed, "tests.test_pickling.undecorated"),
        (of_a_partial, "tests.test_pickling.undecorated"),
        (local(), "tests.test_pickling.local.<locals>.handle"),
    ],
    ids=["renamed", "partial", "local"],
)
def test_a_consumer_that_its_import_path_does_not_lead_to_is_refused(consumer, path):
    with pytest.raises(
        pickle.PicklingError, match=f"{consumer.name} .* {path} .*below @consumer at the top of a module"
    ):
        pickle.dumps(consumer)


def errors_of_the_product():
    """Every error that a user may get: those of the tree, and what adapters derive from them."""
    for folder, package in (("adapters", "idempotent.adapters"), ("idempotent", "idempotent")):
        for path in sorted((ROOT / folder).rglob("*.py")):
            module = ".".join((package, *path.relative_to(ROOT / folder).with_suffix("").parts))
            for name in re.findall(r"^class (\w+)\([\w., ]*Error\b.*\):", path.read_text(), re.MULTILINE):
                if issubclass(found := getattr(import_module(module), name), IdempotentError):
                    yield found


ERRORS = sorted({*errors_of_the_product()}, key=lambda kind: kind.__name__)


@pytest.mark.parametrize("kind", ERRORS)
def test_an_error_comes_through_a_process_pool_with_all_that_it_says(kind):
    error = kind("redis", "redis") if kind is MissingExtraError else kind("at amqp://me:s3cret@host: no")
    if kind is PublishError:
        error = PublishError("2 of 3", refused={0: "too large"}, unknown={2: "no answer"})
    error.add_note("in row 7")
    for copied in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert (type(copied), str(copied), vars(copied)) == (kind, str(error), vars(error))


def test_there_are_many_errors():
    assert len(ERRORS) > 30


def test_a_result_with_the_error_of_a_missing_extra_comes_through_too():
    result = Result(Outcome.FAILED, error=MissingExtraError("redis", "redis"), retry_after_s=1.0)
    assert str(pickle.loads(pickle.dumps(result)).error) == str(result.error)
