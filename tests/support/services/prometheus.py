"""Prometheus, which scrapes what a test tells it to."""

import json
from urllib.parse import urlencode
from urllib.request import urlopen

from tests.support.services.process import PrivateServer

_ANSWER_S = 10.0


def ping(url: str) -> None:
    urlopen(f"{url}/-/ready", timeout=_ANSWER_S).close()


class PrivatePrometheus(PrivateServer):
    """Scrapes each second.

    Args:
        targets: `host:port` of what it scrapes.
    """

    name = "Prometheus"
    debian_package = "prometheus"
    programs = ("prometheus", "promtool")
    ping = staticmethod(ping)

    def __init__(self, *targets: str) -> None:
        super().__init__()
        self._targets = targets

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def query(self, expression: str) -> list[tuple[dict[str, str], float]]:
        """The labels and the value of each series of an expression, now."""
        question = urlencode({"query": expression})
        with urlopen(f"{self.url}/api/v1/query?{question}", timeout=_ANSWER_S) as answer:
            found = json.load(answer)["data"]["result"]
        return [(one["metric"], float(one["value"][1])) for one in found]

    def _prepare(self) -> None:
        # JSON is YAML, too.
        jobs = [{"job_name": "test", "static_configs": [{"targets": list(self._targets)}]}]
        settings = {"global": {"scrape_interval": "1s"}, "scrape_configs": jobs}
        (self.folder / "prometheus.yml").write_text(json.dumps(settings))

    def _command(self) -> list[str]:
        return [
            "prometheus",
            f"--config.file={self.folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={self.folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{self.port}",
        ]
