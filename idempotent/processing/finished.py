"""finished: refuses a return value that stands for work which has not happened."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Iterator
from concurrent.futures import Future
from functools import partial
from itertools import islice
from types import AsyncGeneratorType, CoroutineType, GeneratorType
from typing import Any, Final

from idempotent.errors import ConfigurationError

# What most handlers return. Asking an abstract class takes longer than all other work of this module.
_PLAIN: Final = frozenset({bool, int, float, str, bytes, type(None)})
# A wrapped `async def` or generator function looks like any other function, and nothing of it has run. Not every
# iterator: a file or the result of a statement is one too.
_READ_LATER: Final = (GeneratorType, AsyncGeneratorType, map, filter, zip, enumerate)
_PENDING: Final = (*_READ_LATER, Future, Awaitable, partial)
_CONTAINERS: Final = (list, tuple, dict, set, frozenset, deque)
# A large result is not read to its end: the members of a list are of one kind.
_MOST_MEMBERS: Final = 100
_DEEPEST: Final = 4


def finished(returned: Any) -> Any:
    """What a function of the application returned.

    Raises:
        ConfigurationError: a coroutine, a generator, a future or the like, or a container of them: its work has not
            run, or not to its end.
    """
    if type(returned) in _PLAIN:
        return returned
    pending = list(_pending_in(returned, _DEEPEST))
    if not pending:
        return returned
    first = pending[0]
    if isinstance(first, CoroutineType):
        advice = "which was never awaited; await it in an `async def` handler, or run it with asyncio.run()"
    elif isinstance(first, (Future, Awaitable)):
        advice = "which may not be done; wait for its result in the handler"
    elif isinstance(first, partial):
        advice = "which was never called; call it in the handler"
    else:
        advice = "which runs when it is read; read it in the handler, for example with list()"
    for each in pending:
        if isinstance(each, CoroutineType):
            each.close()  # else Python warns that it was never awaited
    within = "" if first is returned else f"{type(returned).__name__} with a "
    raise ConfigurationError(f"the handler returned a {within}{type(first).__name__}, {advice}")


def _pending_in(value: Any, depth: int) -> Iterator[Any]:
    if type(value) in _PLAIN:
        return
    if isinstance(value, _CONTAINERS):
        members = value.values() if isinstance(value, dict) else value
        for member in islice(members, _MOST_MEMBERS) if depth else ():
            yield from _pending_in(member, depth - 1)
    elif type(value).__module__ == "itertools" or isinstance(value, _PENDING):
        yield value
