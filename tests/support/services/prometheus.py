"""Prometheus, which scrapes what a test tells it to."""

import json
from urllib.parse import urlencode
from urllib.request import urlopen

from tests.support.services.process import PrivateServer

_ANSWER_S = 10.0


def ping(url: str) -> None:
    urlopen(f"{url}/-/ready", timeout=_ANSWER_S).close()


class PrivatePrometheus(PrivateServer):
    """Scrapes twice a second, and looks at its rules as often.

    Args:
        targets: `host:port` of what it scrapes.
        rules: the text of a file of rules.
    """

    name = "Prometheus"
    debian_package = "prometheus"
    programs = ("prometheus", "promtool")
    ping = staticmethod(ping)

    def __init__(self, *targets: str, rules: str = "") -> None:
        super().__init__()
        self._targets = targets
        self._rules = rules

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def query(self, expression: str) -> list[tuple[dict[str, str], float]]:
        """The labels and the value of each series of an expression, now."""
        question = urlencode({"query": expression})
        with urlopen(f"{self.url}/api/v1/query?{question}", timeout=_ANSWER_S) as answer:
            found = json.load(answer)["data"]["result"]
        return [(one["metric"], float(one["value"][1])) for one in found]

    def firing(self) -> set[str]:
        """The names of the alerts that fire now."""
        with urlopen(f"{self.url}/api/v1/alerts", timeout=_ANSWER_S) as answer:
            found = json.load(answer)["data"]["alerts"]
        return {one["labels"]["alertname"] for one in found if one["state"] == "firing"}

    def fired_at(self, alert: str) -> float:
        """When it fired for the first time in the last ten minutes, in seconds since 1970."""
        (found,) = self.query(
            f'min(min_over_time(timestamp(ALERTS{{alertname="{alert}", alertstate="firing"}})[10m:500ms]))'
        )
        return found[1]

    def _prepare(self) -> None:
        # JSON is YAML, too.
        jobs = [{"job_name": "test", "static_configs": [{"targets": list(self._targets)}]}]
        often = {"scrape_interval": "500ms", "evaluation_interval": "500ms"}
        settings = {"global": often, "scrape_configs": jobs, "rule_files": ["rules.yml"]}
        (self.folder / "prometheus.yml").write_text(json.dumps(settings))
        (self.folder / "rules.yml").write_text(self._rules)

    def _command(self) -> list[str]:
        return [
            "prometheus",
            f"--config.file={self.folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={self.folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{self.port}",
        ]
