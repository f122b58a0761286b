"""A standalone cluster of two workers on two loopback hosts: Spark speculates only onto another host."""

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path

import pyspark

from tests.adapters.spark.support import sessions
from tests.support.services.process import die_with_this_process, free_port

_HOSTS = ("127.0.0.2", "127.0.0.3")
_START_TIMEOUT_S = 120.0
_SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.efficiency.enabled": "false",
    "spark.speculation.interval": "100ms",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.quantile": "0.25",
    "spark.speculation.minTaskRuntime": "100ms",
}


class Cluster:
    """Three Java processes in process groups of their own, ended by `close`."""

    def __init__(self, folder):
        self._folder = Path(folder)
        self._port = free_port()
        self._processes = []

    @property
    def settings(self):
        """For a session that speculates on this cluster."""
        return {
            "master": f"spark://127.0.0.1:{self._port}",
            "spark.executor.memory": "512m",
            "spark.cores.max": "4",
            **_SPECULATION,
        }

    def start(self):
        self._java("Master", "--host", "127.0.0.1", "--port", str(self._port), "--webui-port", "0")
        for host in _HOSTS:
            self._java(
                "Worker", "--host", host, "--webui-port", "0", "--cores", "2", "--memory", "1g",
                "--work-dir", str(self._folder / f"work-{host}"), self.settings["master"],
            )  # fmt: skip
        deadline = time.monotonic() + _START_TIMEOUT_S
        while self._log("Master").count("Registering worker") < len(_HOSTS):
            if time.monotonic() > deadline or any(each.poll() is not None for each in self._processes):
                raise RuntimeError(f"the cluster does not start:\n{self._log('Master')}")
            time.sleep(0.1)

    def close(self):
        """The master last, so that no worker looks for it."""
        for process in reversed(self._processes):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def _java(self, name, *words):
        program = Path(pyspark.__path__[0]) / "bin" / "spark-class"
        with (self._folder / f"{name}.log").open("ab") as log:
            self._processes.append(
                subprocess.Popen(
                    [
                        *die_with_this_process(),
                        program,
                        f"org.apache.spark.deploy.{name.lower()}.{name}",
                        *words,
                    ],
                    env=os.environ
                    | sessions.ENVIRONMENT
                    | {"SPARK_DAEMON_MEMORY": "256m", "SPARK_LOCAL_IP": ""},
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            )

    def _log(self, name):
        return (self._folder / f"{name}.log").read_text(errors="replace")
