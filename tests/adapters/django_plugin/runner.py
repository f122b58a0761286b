"""Tests of an application, as Django's test runner runs them: `python -m tests.adapters.django_plugin.runner URL`."""

from __future__ import annotations

import sys
from types import ModuleType

from django.test import TestCase, TransactionTestCase
from django.test.runner import DiscoverRunner

from idempotent import idempotent
from idempotent.adapters.django import DjangoChecker
from tests.adapters.django_plugin.project import configure, database_of, effects, write


@idempotent(DjangoChecker(), group="tests", key="order", name="charge")
def charge(order: str) -> int:
    write("default", order)
    return len(effects("default"))


class Undone(TestCase):
    """The same key twice: what the first test did is gone in the second."""

    def test_one(self) -> None:
        assert [charge("a"), charge("a"), charge("b")] == [1, 1, 2]

    def test_other(self) -> None:
        self.test_one()


class Committed(TransactionTestCase):
    def test_commits(self) -> None:
        assert [charge("a"), charge("a")] == [1, 1]


class Runner(DiscoverRunner):
    def build_suite(self, *_: object, **__: object) -> object:
        return self.test_loader.loadTestsFromModule(_this())


def _this() -> ModuleType:
    return sys.modules[__name__]


if __name__ == "__main__":
    configure({"default": database_of(sys.argv[1])})
    sys.exit(Runner().run_tests([]))
