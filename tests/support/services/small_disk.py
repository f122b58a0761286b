"""A file system so small that it can be filled, for the folder of a server that has not started yet."""

import errno
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.services.process import PrivateServer

_SIZE = "192m"
_CHUNK = b"\0" * (1 << 16)


@contextmanager
def on_a_small_disk(server: PrivateServer) -> Iterator[bool]:
    """Put the server's folder there; gives whether that could be done, which takes root on Linux."""
    mounted = _can_mount() and _mount(server.folder)
    try:
        if mounted:
            shutil.chown(server.folder, server.account or os.geteuid())
        yield mounted
    finally:
        if mounted:
            server.close()
            subprocess.run(["umount", "--lazy", str(server.folder)], check=False)
            server.folder.rmdir()


@contextmanager
def full(server: PrivateServer) -> Iterator[None]:
    """Leave no byte for the server; what it has is safe. A server that ended of it is started again."""
    ballast = server.folder / "ballast"
    try:
        with ballast.open("wb", buffering=0) as file:
            _fill(file.fileno())
        yield
    finally:
        ballast.unlink(missing_ok=True)
        server.start_if_ended()


def _fill(file: int) -> None:
    for size in (len(_CHUNK), 1):
        try:
            while True:
                os.write(file, _CHUNK[:size])
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise


def _can_mount() -> bool:
    return os.geteuid() == 0 and shutil.which("mount") is not None


def _mount(folder: Path) -> bool:
    command = ["mount", "-t", "tmpfs", "-o", f"size={_SIZE},mode=700", "tmpfs", str(folder)]
    return subprocess.run(command, check=False, capture_output=True).returncode == 0
