"""docs/reference/doctor.md has every finding that the code can make, with its levels."""

import ast
import re
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

ROOT = Path(__file__).parents[3]
SOURCES = [
    *(
        "idempotent/checkers/sql/clusters.py",
        "idempotent/outbox/admin.py",
        "idempotent/cli/doctor.py",
        "adapters/base.py",
    ),
    *(
        str(path.relative_to(ROOT))
        for top in ("idempotent/checkers", "adapters")
        for path in sorted((ROOT / top).rglob("findings.py"))
    ),
]
# Too short to say anything: what is said comes from a variable of the function.
TELLING = 12


@dataclass(frozen=True)
class Made:
    """A call of Finding: its levels, and each text that it may have."""

    where: str
    levels: frozenset[str]
    texts: tuple[str, ...]


def text_of(node):
    """The text of an expression, with … in the place of what is computed."""
    match node:
        case ast.Constant(value=str(value)):
            return value
        case ast.JoinedStr():
            return "".join(map(text_of, node.values))
        case ast.BinOp():
            return text_of(node.left) + text_of(node.right)
        case _:
            return "…"


def findings():
    for name in SOURCES:
        for function in ast.walk(ast.parse((ROOT / name).read_text())):
            if not isinstance(function, ast.FunctionDef):
                continue
            texts = [text_of(each) for each in ast.walk(function)]
            for call in ast.walk(function):
                if not isinstance(call, ast.Call) or getattr(call.func, "id", "") != "Finding":
                    continue
                levels = {
                    each.attr.lower()
                    for each in ast.walk(call.args[0])
                    if isinstance(each, ast.Attribute) and ast.unparse(each.value) == "Level"
                } - {"ok"}
                what = call.args[1]
                is_an_error_of_another = isinstance(what, ast.Call) and len(call.args) < 3
                is_an_error_of_another |= ast.unparse(what) == "str(drift)"
                if not levels or is_an_error_of_another:
                    continue
                own = text_of(what)
                is_telling = len(own.replace("…", "").strip()) >= TELLING
                yield Made(f"{name}:{call.lineno}", frozenset(levels), (own,) if is_telling else tuple(texts))


def rows():
    for line in (ROOT / "docs/reference/doctor.md").read_text().splitlines():
        if found := re.fullmatch(r"\| `(.+?)` \| ((?:advice|warning|error|, )+) \| .+ \|", line):
            yield found[1], frozenset(found[2].split(", "))


def test_every_finding_is_on_the_page_with_its_levels_and_nothing_else():
    made, listed = [*findings()], [*rows()]
    assert len(made) > 60
    assert len(listed) > 60
    for phrase, levels in listed:
        meant = [each for each in made if any(phrase in text for text in each.texts)]
        assert meant, f"no finding says {phrase!r}"
        assert levels <= frozenset(chain.from_iterable(each.levels for each in meant)), (phrase, meant)
        for each in meant:
            assert each.levels <= levels or len(each.texts) > 1, (phrase, each)
    for each in made:
        assert any(phrase in text for phrase, _ in listed for text in each.texts), each
