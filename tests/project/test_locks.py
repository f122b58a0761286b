"""A lock is free in the child of a fork: a thread of its parent that held it has no copy there, to release it."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from typing import Final

from tests.project.house import PACKAGE, assert_holds, product, tree_of

LOCKS: Final[Mapping[str, frozenset[str]]] = {
    "threading": frozenset(
        {"Barrier", "BoundedSemaphore", "Condition", "Event", "Lock", "RLock", "Semaphore"}
    ),
    "queue": frozenset({"LifoQueue", "PriorityQueue", "Queue", "SimpleQueue"}),
}
_WORKER: Final = "a child does not go on with the worker, whose threads are its parent's"
_CONNECTION: Final = "a child does not use the connection of its parent"
# Which classes, or modules, make a lock without `free_in_child`, and why.
PLAIN: Final[Mapping[str, str]] = {
    f"{PACKAGE}.adapters.activemq.findings": _CONNECTION,
    f"{PACKAGE}.adapters.activemq.transport.Transport": _CONNECTION,
    f"{PACKAGE}.adapters.files.lines.PipedLines": "a child does not read on in the pipe of its parent",
    f"{PACKAGE}.adapters.kafka.transactions.transactions._Call": _CONNECTION,
    f"{PACKAGE}.adapters.rabbitmq.publish_channels.PublishBatch": _CONNECTION,
    f"{PACKAGE}.adapters.rabbitmq.publisher.Publisher": _CONNECTION,
    f"{PACKAGE}.adapters.spark.run": "a driver holds it for two lines, and forks nothing that has runs",
    f"{PACKAGE}.adapters.spark.tasks.handlers._Renewal": "a task makes it, and forks nothing",
    f"{PACKAGE}.checkers.batching.batcher.Batcher": "a child makes a new one, in Combiner.calls",
    f"{PACKAGE}.checkers.side_calls.SideThreads": "a child makes a new queue, in SideThreads.run",
    f"{PACKAGE}.console.desks.Job": "a child does not go on with the console",
    f"{PACKAGE}.testing.checker_contract.races.RacesContract": "a test waits there for its own threads",
    f"{PACKAGE}.testing.proxy.Proxy": "a child does not go on with the proxy",
    f"{PACKAGE}.worker.handlers.pool.HandlerPool": _WORKER,
    f"{PACKAGE}.worker.handlers.tasks.HandlerTasks": _WORKER,
    f"{PACKAGE}.worker.handlers.threads.HandlerThreads": _WORKER,
    f"{PACKAGE}.worker.store_watch.StoreWatch": _WORKER,
}


def test_a_lock_is_free_in_children_or_a_line_says_why_not():
    assert_holds(
        f"{owner}, line {line}: write free_in_child(...) around the lock, or say in PLAIN why not"
        for owner, line in plain_locks()
        if owner not in PLAIN
    )


def test_each_line_that_says_why_not_has_its_lock():
    assert PLAIN.keys() == {owner for owner, _ in plain_locks()}


def test_a_lock_is_seen_however_it_is_made():
    source = """
import threading
from threading import Lock as Other, RLock
import threading as t
import queue
from queue import Queue

free = free_in_child(threading.Lock())
lines: RLock
class Lines:
    name: RLock = field(default_factory=lambda: free_in_child(RLock()))
a = threading.Lock()
b = RLock()
c = field(default_factory=Other)
d = t.Condition(free)
e = t.Event()
f: Queue[int] = Queue()
g = queue.SimpleQueue()
h = asyncio.Event()
"""
    assert [line for _, line in plain_in(ast.parse(source))] == [12, 13, 14, 15, 16, 17, 18]


def plain_locks() -> Iterator[tuple[str, int]]:
    """Who makes a plain lock, a class or a module, and in which line."""
    for module, path in product().items():
        for name, line in plain_in(tree_of(path)):
            yield f"{module}.{name}" if name else module, line


def plain_in(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """The class at the top of a module that makes a plain lock, empty if none does, and the line."""
    modules, names = imported(tree)
    for part in tree.body:
        fine = {id(node) for hint in excused(part) for node in ast.walk(hint)}
        for node in ast.walk(part):
            match node:
                case ast.Attribute(value=ast.Name(id=module), attr=name):
                    is_lock = name in LOCKS.get(modules.get(module, ""), ())
                case ast.Name(id=name):
                    is_lock = name in names
                case _:
                    is_lock = False
            if is_lock and id(node) not in fine:
                yield part.name if isinstance(part, ast.ClassDef) else "", node.lineno


def imported(tree: ast.Module) -> tuple[dict[str, str], set[str]]:
    """The names that a module gives to `threading` and `queue`, and to their locks."""
    modules: dict[str, str] = {}
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules |= {alias.asname or alias.name: alias.name for alias in node.names if alias.name in LOCKS}
        elif isinstance(node, ast.ImportFrom):
            locks = LOCKS.get(node.module or "", ())
            names |= {alias.asname or alias.name for alias in node.names if alias.name in locks}
    return modules, names


def excused(part: ast.AST) -> Iterator[ast.AST]:
    """The annotations, and what is made within `free_in_child(...)`."""
    for node in ast.walk(part):
        match node:
            case ast.Call(func=ast.Name(id="free_in_child"), args=arguments):
                yield from arguments
            case ast.AnnAssign(annotation=hint) | ast.arg(annotation=ast.expr() as hint):
                yield hint
            case (
                ast.FunctionDef(returns=ast.expr() as hint) | ast.AsyncFunctionDef(returns=ast.expr() as hint)
            ):
                yield hint
