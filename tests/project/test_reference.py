"""The reference has every public name, option and command, and the site every page; the last test makes it."""

import ast
import re
import subprocess
import sys

import pytest

from tests.project.house import ROOT, name_of, product
from tests.project.reference import (
    PAGES,
    commands,
    described,
    exported,
    filled,
    in_markdown,
    linked,
    made_by_urls,
)
from tests.project.test_docs import EXAMPLES
from tests.project.test_docs import PAGES as ALL_PAGES

# Their `__all__` is for the rest of the product.
INNER = re.compile(
    r"idempotent\.(adapters\.\w+\.client|adapters\.spark\.ledger|checkers\.batching|consumer|stores\..+|worker\.handlers)"
)
NAMES = {name.name for names in described().values() for name in names}


def test_the_reference_has_every_name_that_a_module_exports():
    missing = {
        f"{module}.{name}"
        for module in product()
        if not INNER.fullmatch(module)
        for name in set(exported(module)) - NAMES
    }
    assert not missing


def test_the_reference_has_every_name_that_a_page_or_an_example_imports():
    programs = [(name_of(path), path.read_text()) for path in EXAMPLES]
    for page in ALL_PAGES:
        blocks = re.findall(r"^```python\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
        programs += [(name_of(page), block) for block in blocks]
    missing = {
        f"{where}: {node.module}.{alias.name}"
        for where, program in programs
        for node in ast.walk(ast.parse(program))
        if isinstance(node, ast.ImportFrom) and str(node.module).partition(".")[0] == "idempotent"
        for alias in node.names
        if alias.name not in NAMES and f"{node.module}.{alias.name}" not in described()
    }
    assert len(programs) > 100
    assert not missing


def test_a_page_of_the_reference_names_what_exists():
    """Those that a mark names itself; `__all__` is checked by ruff."""
    missing = [
        name.path
        for module, names in described().items()
        for name in names
        if not re.search(rf"\b{name.name}\b", product()[module].read_text())
    ]
    assert not missing


@pytest.mark.parametrize("page", sorted(PAGES.glob("*.md")), ids=name_of)
def test_every_mark_of_a_page_is_one_that_is_filled(page):
    marks = re.findall("<!-- (?:names|options|commands|extras).*?-->", page.read_text())
    assert "<!--" not in filled("\n".join(mark for mark in marks if "names:" not in mark))
    assert all(
        re.fullmatch(r"<!-- (names: [\w.]+( [\w*]+)*|options: \w+|commands|extras) -->", mark)
        for mark in marks
    )


def test_the_reference_and_the_page_of_the_command_line_have_the_same_commands():
    reference = re.findall(
        r"^## `(idempotent .+)`$", filled((PAGES / "commands.md").read_text()), re.MULTILINE
    )
    groups = {words for words, command, _ in commands() if getattr(command, "commands", None)}
    rows = re.findall(r"^\| (`idempotent .+?) \|", (PAGES / "cli.md").read_text(), re.MULTILINE)
    assert set(reference) - groups == {words for row in rows for words in re.findall("`(.+?)`", row)}


@pytest.mark.parametrize("kind", ["adapters", "checkers"])
def test_every_option_of_a_url_is_explained(kind):
    lines = [line for line in filled(f"<!-- options: {kind} -->").splitlines() if line.startswith("| `")]
    rows = [re.split(r"(?<!\\)\|", line)[1:-1] for line in lines]
    assert len(rows) > 3 * len(made_by_urls(kind))
    assert not [
        row[0] for row in rows if len(row) != 4 or not row[3].removeprefix(" In Python only:").strip()
    ]


@pytest.mark.parametrize(
    ("docstring", "written"),
    [
        ("a `Worker` runs", "a :py:obj:`Worker <idempotent.Worker>` runs"),
        ("`Worker.run`", ":py:obj:`Worker.run <idempotent.Worker.run>`"),
        ("the `subject`s of `None`", "the ``subject``\\ s of ``None``"),
        ("``as it is``", "``as it is``"),
    ],
)
def test_code_in_a_docstring_is_a_link_where_the_reference_has_its_name(docstring, written):
    assert linked(docstring) == written


def test_the_index_of_the_site_has_each_page_once():
    docs = ROOT / "docs"
    listed = re.findall(r"^- \[.+\]\((.+)\)$", (docs / "index.md").read_text(), re.MULTILINE)
    pages = {page.relative_to(docs).as_posix() for page in docs.rglob("*.md")}
    assert sorted(listed) == sorted(
        page for page in pages if not page.startswith("decisions/0") and page != "index.md"
    )


def test_the_page_about_the_installation_has_the_extras_that_users_need():
    page = filled((PAGES / "install.md").read_text())
    assert "| `rabbitmq` | `pika>=" in page
    assert "| `dev` |" not in page


def test_the_changelog_is_a_page_whose_links_lead_to_other_pages():
    docs = ROOT / "docs"
    page = filled((docs / "changelog.md").read_text())
    assert "## [Unreleased]" in page
    targets = re.findall(r"\]\(([^)#:]+)[^):]*\)", page)
    assert len(targets) > 50
    assert [target for target in targets if not (docs / target).exists()] == []


def test_a_page_of_the_reference_is_complete_as_markdown():
    page = in_markdown("<!-- names: idempotent.errors -->\n\n<!-- names: idempotent.keys -->")
    assert (
        "### `idempotent.errors.StoreError(message: str | None = None) -> None`\n\nThe store failed." in page
    )
    assert "#### `KeySpace.key(self, message_id: str | bytes) -> Key`" in page


@pytest.mark.slow
def test_the_site_is_made_without_a_warning(tmp_path):
    command = [sys.executable, "-m", "sphinx", "-qEW", "--keep-going", "docs", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "reference" / "checkers.html").read_text()
    assert 'id="idempotent.checkers.SqlChecker"' in page
    assert 'href="errors.html#idempotent.errors.StoreError"' in page
    listed = re.findall(r"^- \[.+?\]\((.+?)\): .", (tmp_path / "llms.txt").read_text(), re.MULTILINE)
    pages = {page.relative_to(tmp_path).as_posix(): page.read_text() for page in tmp_path.rglob("*.md")}
    assert set(listed) <= set(pages)
    links = {
        (name, each) for name, text in pages.items() for each in re.findall(r"\]\(([^)#:]+)[^):]*\)", text)
    }
    assert not {(name, each) for name, each in links if not (tmp_path / name).parent.joinpath(each).exists()}
