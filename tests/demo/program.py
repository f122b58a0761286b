"""A program of the demo over two services and a real broker: orders, billing or a relay; told on standard input."""

from examples.demo.child import outcomes_told
from examples.demo.consumers import Job
from examples.demo.services.programs import RELAY, relay, serve
from examples.demo.stage.children import told_by_parent
from examples.demo.stage.places import place_at
from idempotent.adapters import adapter_from_url


def main() -> None:
    (role, sends_to, told), report = told_by_parent()
    job = Job(*told)
    with outcomes_told(report) as count:
        if role == RELAY:
            relay(job, adapter_from_url(job.broker_url))
        else:
            serve(job, place_at(job.broker_url, job.subject, job.batch_size).adapter(), sends_to, count)


if __name__ == "__main__":
    main()
