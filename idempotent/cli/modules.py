"""Finds the consumers of MODULE:NAME, and gives their registry the checkers of NAME=URL."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from types import ModuleType

import typer

from idempotent.cli.configuration import url_in
from idempotent.cli.stores import limit_waits, open_checker
from idempotent.consumer import AnyConsumer
from idempotent.errors import ConfigurationError, IdempotentError
from idempotent.registry import Registry, default_registry


def registry_at(reference: str) -> Registry:
    """The registry of `MODULE:registry`; for `MODULE` alone the default one, filled by the import.

    Raises:
        ConfigurationError: the module cannot be imported or has no such registry, the registry has no consumers, or the
            default one has those of other modules alone, and the module has registries of its own.
    """
    module, name = _module(reference)
    if name is not None:
        registry = _attribute(module, name, _named(module, Registry))
        if not isinstance(registry, Registry):
            raise ConfigurationError(f"{reference} is not a Registry but a {type(registry).__name__}")
        own = ""
    else:
        registry = default_registry
        own = ", ".join(f"{module.__name__}:{each}" for each in _named(module, Registry))
    if not registry.consumers:
        hint = f"; it has registries of its own: {own}" if own else ""
        raise ConfigurationError(f"{reference} has no consumers: decorate a handler with @consumer{hint}")
    if own and all(home_of(consumer) != module.__name__ for consumer in registry.consumers.values()):
        raise ConfigurationError(
            f"the default registry has no consumer of {reference}, but those of modules that it imports: "
            f"{', '.join(sorted(registry.consumers))}. It has registries of its own: {own}"
        )
    return registry


def home_of(consumer: AnyConsumer) -> str:
    """The module in which a consumer's handler is."""
    return str(getattr(getattr(consumer, "__wrapped__", None), "__module__", ""))


def reference_of(consumer: AnyConsumer) -> str:
    """The consumer as `MODULE:name`; those words themselves if its handler's module has no such name."""
    module = sys.modules.get(home_of(consumer))
    names = [] if module is None else [name for name, value in vars(module).items() if value is consumer]
    return f"{home_of(consumer)}:{names[0]}" if names else "MODULE:CONSUMER"


def consumer_at(reference: str) -> tuple[Registry, AnyConsumer]:
    """The registry and the consumer of `MODULE:name`.

    Raises:
        ConfigurationError: the module cannot be imported, or has no such consumer.
    """
    module, name = _module(reference)
    known = _named(module, AnyConsumer)
    if name is None:
        listed = ", ".join(f"{module.__name__}:{each}" for each in known) or "none"
        raise ConfigurationError(f"which consumer? Write MODULE:NAME; {reference} has: {listed}")
    consumer = _attribute(module, name, known)
    if not isinstance(consumer, AnyConsumer):
        raise ConfigurationError(f"{reference} is not a consumer: decorate the function with @consumer")
    for registry in _registries(module):
        if consumer in registry.consumers.values():
            return registry, consumer
    raise ConfigurationError(
        f"the registry of {reference} is not in {module.__name__}: import it there by name"
    )


def consumers_at(reference: str) -> tuple[Registry, list[AnyConsumer]]:
    """The registry and the consumers of `MODULE`, `MODULE:registry`, or the one of `MODULE:name`.

    Raises:
        ConfigurationError: the module cannot be imported, or has no such consumers.
    """
    module, name = _module(reference)
    if name is None or name in _named(module, Registry):
        registry = registry_at(reference)
        return registry, list(registry.consumers.values())
    registry, consumer = consumer_at(reference)
    return registry, [consumer]


@contextmanager
def checkers_in(
    registry: Registry, given: Sequence[str] | None, *, limited: Iterable[AnyConsumer] = ()
) -> Iterator[None]:
    """Inside, the registry has the checkers of `NAME=URL`. It is closed at the end.

    Args:
        registry: of the module.
        given: the words; None: there are none.
        limited: consumers whose stores are not waited for without a limit: those of a command that ends.

    Raises:
        typer.BadParameter: not of the form NAME=URL.
        ConfigurationError: no checker fits the URL.
    """
    with closing(registry):
        for word in given or ():
            name, equals, given_url = word.partition("=")
            url = url_in(given_url)
            if equals and name and url != given_url and "://" not in url:
                raise ConfigurationError(
                    f"the environment variable of --checker {word} has no URL: it needs a value such as "
                    "sqlite:///app.db"
                )
            if not equals or not name or "://" not in url:
                raise typer.BadParameter(
                    "write --checker NAME=URL, for example --checker db=sqlite:///app.db"
                )
            registry.checker(name, open_checker(url))
        for checker in {consumer.checker for consumer in limited}:
            limit_waits(checker)
        yield


@contextmanager
def consumer_with(reference: str, checkers: Sequence[str] | None) -> Iterator[AnyConsumer]:
    """Inside, the consumer of `MODULE:name` with its checkers. Raises as `consumer_at` and `checkers_in`."""
    registry, consumer = consumer_at(reference)
    with checkers_in(registry, checkers, limited=[consumer]):
        yield consumer


def _module(reference: str) -> tuple[ModuleType, str | None]:
    path, _, name = reference.partition(":")
    if path.endswith(".py") or "/" in path:
        dotted = path.removesuffix(".py").strip("./").replace("/", ".")
        raise ConfigurationError(f"{path} is a file; write the module: {dotted}{':' + name if name else ''}")
    # `python -m` puts the current folder there, an installed command its own.
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(path), name or None
    except IdempotentError:
        raise
    except ModuleNotFoundError as error:
        if error.name is not None and (path == error.name or path.startswith(f"{error.name}.")):
            raise ConfigurationError(
                f"module {path} was not found in {here}, and is not installed"
            ) from error
        raise ConfigurationError(f"importing {path} failed: {error}") from error
    except Exception as error:
        raise ConfigurationError(
            f"importing {path} failed: {type(error).__name__}: {error} (idempotent --debug shows where)"
        ) from error


def _attribute(module: ModuleType, name: str, known: Sequence[str]) -> object:
    try:
        found: object = getattr(module, name)
    except AttributeError:
        listed = ", ".join(known) or "none"
        raise ConfigurationError(f"{module.__name__} has no {name!r}; known: {listed}") from None
    return found


def _named(module: ModuleType, kind: type) -> list[str]:
    return sorted(name for name, value in vars(module).items() if isinstance(value, kind))


def _registries(module: ModuleType) -> Iterator[Registry]:
    yield default_registry
    yield from (value for value in vars(module).values() if isinstance(value, Registry))
