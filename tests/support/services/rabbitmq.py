"""RabbitMQ."""

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from tests.support.services.docker import Image
from tests.support.services.process import (
    PrivateServer,
    ServerFailedError,
    die_with_this_process,
    free_port,
    runs,
)

USER = PASSWORD = "idempotent"
MANAGEMENT = "management"
_MANAGEMENT_APPS = ("rabbitmq_management", "rabbitmq_management_agent", "rabbitmq_web_dispatch")
_EVALUATE_TIMEOUT_S = 60.0
# epmd, which every Erlang node needs, would start by itself, as a daemon that nobody stops.
_SCRIPT = """
{guard} epmd -address 127.0.0.1 -port "$ERL_EPMD_PORT" &
until epmd -names >/dev/null 2>&1; do sleep 0.02; done
exec {server}
"""


def ping(url: str) -> None:
    import pika

    pika.BlockingConnection(pika.URLParameters(url)).close()


class PrivateRabbitMq(PrivateServer):
    """Its options are lines of rabbitmq.conf, such as `"max_message_size = 1000"`.

    With the word `management` it has the management API at `management_url`.
    """

    name = "RabbitMQ"
    debian_package = "rabbitmq-server"
    programs = ("rabbitmq-server", "erl_call", "epmd")
    account = "rabbitmq"
    ping = staticmethod(ping)

    def __init__(self, *settings: str) -> None:
        super().__init__()
        self.settings = [each for each in settings if each != MANAGEMENT]
        self._management_port = free_port() if MANAGEMENT in settings else None
        self._tuned: dict[str, str] = {}
        self._epmd_port = free_port()
        self._distribution_port = free_port()

    @classmethod
    def find(cls, program: str) -> str | None:
        """Debian's scripts in PATH are wrappers that insist on its own folders."""
        path = Path("/usr/lib/rabbitmq/bin") / program
        return str(path) if path.exists() else super().find(program)

    @property
    def url(self) -> str:
        return f"amqp://{USER}:{PASSWORD}@127.0.0.1:{self.port}/%2F"

    @property
    def management_url(self) -> str:
        return f"http://127.0.0.1:{self._management_port}"

    def evaluate(self, expression: str) -> str:
        """Evaluate Erlang in the broker; the value, as Erlang writes it. `rabbitmqctl` would take seconds to start.

        Raises:
            ServerFailedError: the expression failed.
        """
        cookie = (self.folder / ".erlang.cookie").read_text()
        done = subprocess.run(
            ["erl_call", "-address", f"localhost:{self._distribution_port}", "-c", cookie, "-e"],
            check=False,
            input=f"{expression}\n",
            capture_output=True,
            text=True,
            timeout=_EVALUATE_TIMEOUT_S,
        )
        value = done.stdout.removeprefix("{ok, ").removesuffix("}")
        if done.returncode != 0 or value == done.stdout:
            raise ServerFailedError(f"{expression}: {done.stdout}{done.stderr}")
        return value

    def tune(self, setting: str, value: int) -> None:
        """Change a setting, for channels that are opened from now on."""
        was = self.evaluate(
            f"Was = application:get_env(rabbit, {setting}), application:set_env(rabbit, {setting}, {value}), Was."
        )
        self._tuned.setdefault(setting, was)

    @contextmanager
    def tuned(self) -> Iterator[None]:
        """Restore at the end what was tuned meanwhile."""
        try:
            yield
        finally:
            for setting, was in self._tuned.items():
                if was == "undefined":
                    self.evaluate(f"application:unset_env(rabbit, {setting}).")
                else:
                    value = was.removeprefix("{ok, ").removesuffix("}")
                    self.evaluate(f"application:set_env(rabbit, {setting}, {value}).")
            self._tuned.clear()

    @contextmanager
    def short_of_memory(self) -> Iterator[None]:
        """Meanwhile it reads nothing from connections that publish."""
        limit = "vm_memory_monitor:set_vm_memory_high_watermark"
        self.evaluate(f"{limit}(0.00001).")
        try:
            until = time.monotonic() + _EVALUATE_TIMEOUT_S
            while "memory" not in self.evaluate("rabbit_alarm:get_alarms()."):
                if time.monotonic() > until:
                    raise ServerFailedError("no alarm, although memory is short")
            yield
        finally:
            self.evaluate(f'{limit}({{absolute, "2GB"}}).')

    @contextmanager
    def refusing(self, queues: str, *, above: int = 1) -> Iterator[None]:
        """Meanwhile queues whose names match a regular expression refuse messages above a number of them."""
        policy, owner = '<<"/">>, <<"refusing">>', '<<"tests">>'
        # Two policies, because the broker applies the length before the overflow, and would drop what is there.
        for length in (1_000_000, above):
            limits = f'[{{<<"max-length">>, {length}}}, {{<<"overflow">>, <<"reject-publish">>}}]'
            self.evaluate(f'rabbit_policy:set({policy}, <<"{queues}">>, {limits}, 0, <<"queues">>, {owner}).')
        try:
            yield
        finally:
            self.evaluate(f"rabbit_policy:delete({policy}, {owner}).")

    def stop(self) -> None:
        family = self._family()
        super().stop()
        # epmd ends with the server by itself only where the kernel knows how.
        for member in family:
            if runs(member):
                try:
                    member.kill()
                except psutil.NoSuchProcess:
                    continue

    def _prepare(self) -> None:
        lines = [
            f"listeners.tcp.1 = 127.0.0.1:{self.port}",
            f"default_user = {USER}",
            f"default_pass = {PASSWORD}",
            "default_user_tags.administrator = true",
            # The machine is shared: an alarm would stop every publisher.
            "disk_free_limit.absolute = 1MB",
            "vm_memory_high_watermark.absolute = 2GB",
            *self.settings,
        ]
        plugins = ""
        if self._management_port is not None:
            plugins = "rabbitmq_management"
            lines += [
                "management.tcp.ip = 127.0.0.1",
                f"management.tcp.port = {self._management_port}",
            ]
        (self.folder / "rabbitmq.conf").write_text("".join(f"{line}\n" for line in lines))
        (self.folder / "plugins").write_text(f"[{plugins}].\n")
        (self.folder / "apps").mkdir()
        for app in _own_apps(plugins):
            (self.folder / "apps" / app.name).symlink_to(app)

    def _command(self) -> list[str]:
        guard = " ".join(die_with_this_process())
        script = _SCRIPT.format(guard=guard, server=self.find("rabbitmq-server"))
        return [*self._environment(), "sh", "-c", script]

    def _environment(self) -> list[str]:
        values = {
            "HOME": self.folder,
            # Replaces the script by the server, which then gets the signals.
            "RUNNING_UNDER_SYSTEMD": "1",
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "ERL_EPMD_PORT": self._epmd_port,
            "RABBITMQ_NODENAME": f"idempotent-{self.port}@localhost",
            "RABBITMQ_DIST_PORT": self._distribution_port,
            "RABBITMQ_MNESIA_BASE": self.folder / "data",
            "RABBITMQ_LOG_BASE": self.folder,
            "RABBITMQ_LOGS": "-",
            "RABBITMQ_PID_FILE": self.folder / "pid",
            "RABBITMQ_CONF_ENV_FILE": self.folder / "no-env.conf",
            "RABBITMQ_CONFIG_FILE": self.folder / "rabbitmq.conf",
            "RABBITMQ_ENABLED_PLUGINS_FILE": self.folder / "plugins",
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": (
                "+S 1:1 +sbwt none -kernel inet_dist_use_interface {127,0,0,1}"
            ),
        }
        if _own_apps(""):
            values["RABBITMQ_PLUGINS_DIR"] = self.folder / "apps"
        path = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/usr/bin"
        return ["env", f"PATH={path}", *(f"{name}={value}" for name, value in values.items())]


def _own_apps(plugins: str) -> list[Path]:
    """The broker's own parts: it would parse the settings of every plugin that it finds, used or not."""
    wanted = ("rabbitmq_prelaunch", *(_MANAGEMENT_APPS if plugins else ()))
    return [
        app
        for app in Path("/usr/lib/rabbitmq/lib").glob("rabbitmq_server-*/plugins/*")
        if app.name.startswith(wanted) or not app.name.startswith("rabbitmq_")
    ]


IMAGE = Image(
    "rabbitmq:4",
    port=5672,
    environment={"RABBITMQ_DEFAULT_USER": USER, "RABBITMQ_DEFAULT_PASS": PASSWORD},
    command="rabbitmq-server",
    url=f"amqp://{USER}:{PASSWORD}@{{host}}:{{port}}/%2F",
)
