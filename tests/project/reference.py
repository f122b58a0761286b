"""What the code says of itself, for the pages of docs/: public names, options and commands; extras, changelog.

A page has marks, which are comments where its Markdown is read as it is; for the site, docs/conf.py fills them:

    <!-- names: idempotent.checkers -->                     the names of `__all__`
    <!-- names: idempotent.worker.probes HealthServer -->   these names of a module; `*Error`: all that end so
    <!-- options: adapters -->                              a table for each class that a URL makes; or `checkers`
    <!-- commands -->                                       the help of each command
    <!-- extras -->                                         the extras of the package, with what each brings
    <!-- changelog -->                                      CHANGELOG.md, on a page of docs/ itself
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import Enum
from fnmatch import filter as matching
from functools import cache
from typing import Any, Final, NamedTuple

import typer

from idempotent.adapters.urls import ADAPTERS
from idempotent.checkers.urls import SCHEMES, scheme_of
from idempotent.cli.root import app
from idempotent.validation import keywords
from tests.project.house import ROOT, product, tree_of

PAGES: Final = ROOT / "docs" / "reference"
_MARK: Final = re.compile(r"^<!-- (names|options|commands|extras|changelog)(?:: (.+?))? -->$", re.MULTILINE)
_CODE: Final = re.compile(r"(?<!`)`([^`]+)`(?!`)(?=(\w)?)")
_ARGUMENT: Final = re.compile(r"^    (\w+): ((?:.+\n?)(?:     +.+\n?)*)", re.MULTILINE)
_ANNOTATION: Final = re.compile("(: |-> )'([^']*)'")
_WIDTH: Final = 96
# What only a checkout needs.
_OUR_EXTRAS: Final = frozenset({"bench", "dev", "docs"})


class Name(NamedTuple):
    """A public name, as a user imports it."""

    module: str
    name: str

    @property
    def path(self) -> str:
        return f"{self.module}.{self.name}"

    @property
    def value(self) -> Any:
        return getattr(importlib.import_module(self.module), self.name)

    @property
    def home(self) -> Name:
        """Where it is described: in the module that defines it if that is public too, else here."""
        return self.defined if self.defined in described().get(self.defined.module, []) else self

    @property
    def defined(self) -> Name:
        """Behind the imports of it, read from the source: importing every framework takes seconds."""
        for node in ast.walk(tree_of(product()[self.module])):
            match node:
                case ast.ImportFrom(module=str(module), names=aliases) if module in product():
                    if self.name in [alias.name for alias in aliases]:
                        return Name(module, self.name).defined
        return self


def filled(page: str) -> str:
    """The page, with what stands for its marks: Markdown, and directives of autodoc."""
    return _MARK.sub(lambda mark: "\n".join(_FILLERS[mark[1]](*(mark[2] or "").split())), page)


def in_markdown(page: str) -> str:
    """The page with its marks filled in Markdown alone, for what reads no directives."""
    fillers = {**_FILLERS, "names": _names_in_markdown}
    return _MARK.sub(lambda mark: "\n".join(fillers[mark[1]](*(mark[2] or "").split())), page)


@cache
def described() -> Mapping[str, list[Name]]:
    """The names of all pages, by the module from which they are imported."""
    marks = [found for page in sorted(PAGES.glob("*.md")) for found in _MARK.findall(page.read_text())]
    return {
        module: names_of(module, *names)
        for module, *names in (words.split() for kind, words in marks if kind == "names")
    }


def names_of(module: str, *names: str) -> list[Name]:
    """The public names of a module, read from its source: those given, or its `__all__`, or what it defines itself."""
    public = exported(module) or _defined_in(module)
    given = [match for name in names for match in (matching(public, name) if "*" in name else [name])]
    return [Name(module, name) for name in given or public]


def exported(module: str) -> list[str]:
    """The names in `__all__`; none if a module has none."""
    path = product()[module]
    for node in tree_of(path).body if "__all__" in path.read_text() else []:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            found: list[str] = ast.literal_eval(node.value)
            return found
    return []


def _defined_in(module: str) -> list[str]:
    kinds = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    body = tree_of(product()[module]).body
    return [node.name for node in body if isinstance(node, kinds) and not node.name.startswith("_")]


def linked(docstring: str) -> str:
    """Text in which `code` is what it is in reStructuredText, and a link if it is a name of the reference."""
    return _CODE.sub(_linked, docstring)


def _linked(found: re.Match[str]) -> str:
    name, _, member = found[1].partition(".")
    path = _paths().get(name)
    code = f"``{found[1]}``" if path is None else f":py:obj:`{found[1]} <{path}{member and '.'}{member}>`"
    return code + ("\\ " if found[2] else "")


@cache
def _paths() -> Mapping[str, str]:
    """Where each name is described that only one module has, and that is no word of other meanings too."""
    homes: dict[str, set[str]] = {}
    for names in described().values():
        for name in names:
            homes.setdefault(name.name, set()).add(name.home.path)
    return {name: min(paths) for name, paths in homes.items() if len(paths) == 1 and name[0].isupper()}


def _names(module: str, *names: str) -> Iterator[str]:
    every = names_of(module, *names)
    yield from (f"## `{module}`", "", "```{eval-rst}", f".. automodule:: {module}", "   :no-members:", "")
    elsewhere = [f":py:obj:`{name.name} <{name.home.path}>`" for name in every if name.home != name]
    if elsewhere:
        yield from (f"Described where they are defined: {', '.join(elsewhere)}.", "")
    for name in every:
        if name.home == name:
            yield from _directive(name)
    yield "```"


def _directive(name: Name) -> Iterator[str]:
    kind, options = "function", []
    if not callable(name.value):
        # An object's text would have its address.
        kind, options = "data", [] if isinstance(name.value, (bytes, float, int, str)) else ["no-value"]
    elif isinstance(name.value, type):
        kind = "exception" if issubclass(name.value, BaseException) else "class"
        options = ["members", "show-inheritance", *["undoc-members"] * issubclass(name.value, Enum)]
    yield f".. auto{kind}:: {name.path}"
    yield from (f"   :{option}:" for option in options)
    yield ""


def _names_in_markdown(module: str, *names: str) -> Iterator[str]:
    yield from (f"## `{module}`", "")
    for name in names_of(module, *names):
        if name.home != name:
            yield from (f"`{name.name}` is described as `{name.home.path}`.", "")
            continue
        yield from _in_markdown("###", name.path, name.value)
        members = vars(name.value).items() if isinstance(name.value, type) else ()
        for member, value in members:
            found = getattr(value, "__func__", value)
            if not member.startswith("_") and (inspect.isfunction(found) or isinstance(found, property)):
                yield from _in_markdown("####", f"{name.name}.{member}", found)


def _in_markdown(level: str, path: str, value: Any) -> Iterator[str]:
    try:
        # Annotations are texts, which would stand in quotes.
        signature = _ANNOTATION.sub(r"\1\2", str(inspect.signature(value))) if callable(value) else ""
    except (TypeError, ValueError):  # what only C describes
        signature = ""
    yield from (f"{level} `{path}{signature}`", "")
    if callable(value) or isinstance(value, property):
        yield from (inspect.cleandoc(value.__doc__ or ""), "")


def made_by_urls(kind: str) -> Mapping[type, list[str]]:
    """The classes of adapters or checkers, with the beginnings of the URLs that make each."""
    if kind == "checkers":
        schemes = [*SCHEMES, scheme_of("sqlite://")]
        starts = [(each.start or "sqlite:// and the like", each.checker_class()) for each in schemes]
    else:
        targets = [(f"{scheme}://", target.partition(":")) for scheme, target in ADAPTERS.items()]
        starts = [(start, Name(module, name).value) for start, (module, _, name) in targets]
    made: dict[type, list[str]] = {}
    for start, each in starts:
        made.setdefault(each, []).append(start)
    return made


def _options(kind: str) -> Iterator[str]:
    for made, starts in made_by_urls(kind).items():
        yield from (
            f"### `{made.__name__}`",
            "",
            f"Made by {', '.join(f'`{start}`' for start in starts)}.",
            "",
        )
        yield from ("| option | values | default | |", "|---|---|---|---|")
        for maker in (made, *getattr(made, "also_made", ())):
            yield from _rows(maker)
        yield ""


def _rows(maker: type) -> Iterator[str]:
    meanings = {
        name: " ".join(text.split())
        for each in reversed(inspect.getmro(maker))
        for name, text in _ARGUMENT.findall(inspect.cleandoc(each.__doc__ or ""))
    }
    in_url = keywords(maker)
    for parameter in inspect.signature(maker).parameters.values():
        if parameter.kind is not parameter.KEYWORD_ONLY:
            continue
        default = "" if parameter.default is parameter.empty else f"`{_written(parameter.default)}`"
        values = str(parameter.annotation).replace("\n", " ").replace("|", "\\|")
        meaning = meanings.get(parameter.name, "").replace("|", "\\|")
        only = "" if parameter.name in in_url else "In Python only: "
        yield f"| `{parameter.name}` | `{values}` | {default} | {only}{meaning} |"


def _written(default: object) -> str:
    return repr(default.value if isinstance(default, Enum) else default)


def commands() -> Iterator[tuple[str, Any, Any]]:
    """Each command: its words, itself and the context of its help; a group comes before its commands."""
    root = typer.main.get_command(app)
    yield from _below(root, root.context_class(root, info_name="idempotent", terminal_width=_WIDTH))


def _below(command: Any, context: Any) -> Iterator[tuple[str, Any, Any]]:
    yield context.command_path, command, context
    for name in getattr(command, "commands", {}):
        found = command.commands[name]
        yield from _below(found, found.context_class(found, info_name=name, parent=context))


def _commands() -> Iterator[str]:
    for words, command, context in commands():
        yield from (f"## `{words}`", "", "```text", command.get_help(context), "```", "")


def _extras() -> Iterator[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    yield from ("| extra | brings |", "|---|---|")
    for extra, brought in project["optional-dependencies"].items():
        if extra not in _OUR_EXTRAS:
            yield f"| `{extra}` | {', '.join(f'`{each}`' for each in brought)} |"


def _changelog() -> Iterator[str]:
    """The changelog below its title; its links lead from the root of the repository, those of the page from docs/."""
    _, _, below = (ROOT / "CHANGELOG.md").read_text().partition("\n\n")
    yield below.replace("](docs/", "](")


_FILLERS: Final[Mapping[str, Callable[..., Iterable[str]]]] = {
    "names": _names,
    "options": _options,
    "commands": _commands,
    "extras": _extras,
    "changelog": _changelog,
}
