"""How Sphinx makes the site, for `make docs`: from plain Markdown, and the reference from the code."""

from __future__ import annotations

import logging
import re
from functools import partial
from pathlib import Path
from typing import Any

from pygments.lexers.special import TextLexer
from sphinx.application import Sphinx
from sphinx.ext.napoleon import Config, GoogleDocstring

import idempotent
from tests.project import reference

project = "idempotent-consumer"
author = "The idempotent-consumer authors"
release = idempotent.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc"]
html_theme = "furo"
html_title = f"{project} {release}"
html_copy_source = False
html_search_scorer = str(Path(__file__).with_name("search_order.js"))
# Links lead to headings under the names that GitHub gives them, where the pages are read too.
myst_heading_anchors = 6
# What a class only inherits is described where it is defined, and other libraries describe theirs.
autodoc_inherit_docstrings = False
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
maximum_signature_line_length = 80
# A package of the theme makes the root logger print from INFO on.
logging.getLogger("alembic").setLevel(logging.WARNING)

HERE = Path(__file__).parent
_LINK = re.compile(r"\[([^]\[]+)\]\(([^)#:]+)(?:#[^)]*)?\)")
_SECTION = re.compile(r"^## (.+)\n\n((?:- .+\n)+)", re.MULTILINE)
_DOCSTRINGS = Config(napoleon_use_ivar=True, napoleon_use_rtype=False)


def _fill(_: Sphinx, page: str, source: list[str]) -> None:
    """Complete a page for the site."""
    folder = (HERE / page).parent

    def kept(link: re.Match[str]) -> str:
        """Folders, and pages that are not in the site, are named without a link; other files can be downloaded."""
        target = (folder / link[2]).resolve()
        return link[1] if HERE not in target.parents and target.suffix in {"", ".md"} else link[0]

    text = reference.filled(_LINK.sub(kept, source[0]))
    if page == "index":
        text = _SECTION.sub(_as_toctree, text)
    if page == "decisions/README":
        text += "\n```{toctree}\n:hidden:\n:glob:\n\n0*\n```\n"
    source[0] = text


def _as_toctree(section: re.Match[str]) -> str:
    """A section of the index that is a list of pages, for the site and its sidebar."""
    pages = "\n".join(f"{title} <{path}>" for title, path in _LINK.findall(section[2]))
    return f"```{{toctree}}\n:caption: {section[1]}\n:maxdepth: 1\n\n{pages}\n```\n"


def _read_docstring(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Turn a docstring into reStructuredText."""
    # Of an attribute's docstring, napoleon would take what is before the first colon for a type.
    kind = "method" if what in {"attribute", "data", "property"} else what
    text = reference.linked("\n".join(lines)).splitlines()
    lines[:] = GoogleDocstring(text, _DOCSTRINGS, app, kind, name, obj, options).lines()


def _add_markdown(app: Sphinx, error: Exception | None) -> None:
    """Put each page beside its HTML as plain Markdown, and their list in llms.txt, for the assistants of readers.

    The list has the form of https://llmstxt.org.
    """
    if error is not None:
        return
    for path in HERE.rglob("*.*"):
        target = Path(app.outdir) / path.relative_to(HERE)
        if path.suffix in {".json", ".md", ".png", ".svg", ".yml"}:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(path.read_bytes())
        if path.suffix == ".md":
            target.write_text(
                reference.in_markdown(_LINK.sub(partial(_within, path.parent), path.read_text()))
            )
    lines = [f"# {project}", "", f"> {_first_words(HERE / 'index.md')}", ""]
    for title, pages in _SECTION.findall((HERE / "index.md").read_text()):
        lines += [f"## {title}", ""]
        lines += [f"- [{name}]({path}): {_first_words(HERE / path)}" for name, path in _LINK.findall(pages)]
        lines.append("")
    (Path(app.outdir) / "llms.txt").write_text("\n".join(lines))


def _within(folder: Path, link: re.Match[str]) -> str:
    """What the site does not have is named without a link."""
    return link[0] if HERE in (folder / link[2]).resolve().parents else link[1]


def _first_words(page: Path) -> str:
    """The first paragraph of text below the title: programs, tables, lists and pictures are passed over."""
    below = re.sub(r"^```.+?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    paragraphs = [each for each in below.split("\n\n") if re.match(r"[A-Z`\[\"]", each)]
    return " ".join(_LINK.sub(r"\1", paragraphs[0]).split()).rstrip(":") if paragraphs else page.stem


def setup(app: Sphinx) -> None:
    """Take part in reading pages and docstrings, and show the one picture in Mermaid as its text."""
    app.connect("source-read", _fill)
    app.connect("autodoc-process-docstring", _read_docstring)
    app.connect("build-finished", _add_markdown)
    app.add_lexer("mermaid", TextLexer)
