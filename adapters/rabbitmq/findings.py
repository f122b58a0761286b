"""What `idempotent doctor` says of RabbitMQ: the queues of consumers and of their dead letters."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from shlex import quote
from typing import Any, Final

from idempotent.adapters.rabbitmq.client import (
    LOST,
    is_missing,
    pika_errors,
    plain_error,
    remedy_for,
    within,
)
from idempotent.adapters.rabbitmq.management import Management
from idempotent.adapters.rabbitmq.server import Server
from idempotent.adapters.rabbitmq.topology import Topology, version_of
from idempotent.adapters.reconnecting import describe
from idempotent.admin import DEAD_LIST, Finding, Level
from idempotent.errors import AdapterError

_ANSWER_S: Final = 20.0
_GOODBYE_S: Final = 2.0
_EXCLUSIVE: Final = 405
# Since RabbitMQ 4.0.
_DEFAULT_LIMIT: Final = 20
_LIMIT_SINCE: Final = (4, 0)
_DEFAULT_TIMEOUT_MS: Final = 30 * 60 * 1000
_POLICY: Final = "rabbitmqctl list_policies shows who sets it"


def rabbitmq_findings(
    server: Server, topology: Topology, management: Management | None, subjects: Collection[str]
) -> Iterator[Finding]:
    """Check the queues by passive declarations, and by the management API if there is one. Changes nothing.

    Raises:
        AdapterError: the broker refuses the connection, or cannot be reached.
    """
    connection = _connected(server)
    try:
        version = str(connection.server_properties.get("version", ""))
        yield Finding(Level.OK, f"the broker answers: RabbitMQ {version} at {server.where}")
        if not subjects:
            yield Finding(
                Level.ADVICE,
                f"no queue of {server.where} is looked at",
                "name the module of the consumers, or the queues: --subject NAME",
            )
        there: dict[str, str] = {}
        """The queues that exist, each with the work queue for which it was looked at."""
        for queue in subjects:
            is_dead = topology.due(queue) == queue
            for name in (queue,) if is_dead else (queue, topology.dead(queue)):
                if name in there:
                    continue
                messages = _messages(connection, name)
                if not isinstance(messages, int):
                    yield _missing_or_refused(topology, queue, name, messages, work_is_there=queue in there)
                    continue
                there[name] = queue
                if messages and (is_dead or name != queue):
                    yield Finding(
                        Level.WARNING,
                        f"dead letters wait in {name}: {messages:,}",
                        DEAD_LIST,
                    )
    finally:
        with suppress(*LOST, TimeoutError):
            within(connection.close, _GOODBYE_S)
    if there:
        yield from _arguments(server, topology, management, there, version_of(connection.server_properties))


def _connected(server: Server) -> Any:
    for attempt in range(len(server.hosts)):
        try:
            return server.connect(attempt)
        except LOST as error:
            last = error
    raise AdapterError(
        f"cannot use {server.where}: {remedy_for(last) or describe(plain_error(last))}"
    ) from last


def _messages(connection: Any, queue: str) -> int | BaseException:
    """How many messages a queue has that no consumer has; or why it cannot be used.

    Raises:
        AdapterError: the connection was lost.
    """
    counts: list[int] = []

    def look() -> None:
        channel = connection.channel()
        counts.append(channel.queue_declare(queue, passive=True).method.message_count)
        channel.close()

    try:
        within(look, _ANSWER_S)
    except (pika_errors.ChannelClosedByBroker, TimeoutError) as error:
        return error
    except LOST as error:
        raise AdapterError(f"the connection was lost: {describe(plain_error(error))}") from error
    return counts[0]


def _missing_or_refused(
    topology: Topology, queue: str, name: str, fault: BaseException, *, work_is_there: bool
) -> Finding:
    if getattr(fault, "reply_code", None) == _EXCLUSIVE:
        return Finding(
            Level.ERROR,
            f"the queue {name} is exclusive: it belongs to one connection, and goes with it",
            "the client that made it has to close its connection, which deletes the queue, and to declare it durable "
            "and not exclusive; a worker that starts meanwhile makes it so",
        )
    if not is_missing(fault):
        return Finding(Level.ERROR, f"the queue {name} cannot be used: {describe(fault)}")
    what = (
        f"the queue {name} does not exist"
        if name == queue
        else f"the dead-letter queue {name} does not exist"
    )
    if not topology.declare:
        return Finding(Level.ERROR, what, "create it: declare is off, so no worker does")
    if name != queue and work_is_there:
        return Finding(
            Level.WARNING,
            f"{what}, although {queue} does: what the broker itself dead-letters has no target",
            "the next start of a worker creates it",
        )
    return Finding(
        Level.ADVICE, f"{what} yet", "a worker creates it when it starts; what is sent before is lost"
    )


def _arguments(
    server: Server,
    topology: Topology,
    management: Management | None,
    there: Mapping[str, str],
    version: tuple[int, int],
) -> Iterator[Finding]:
    yield Finding(
        Level.ADVICE,
        "the broker does not tell its consumer_timeout, which by default returns a message after 30 minutes with a "
        "consumer",
        "rabbitmqctl environment | grep consumer_timeout: more than a handler and the messages before it may take",
    )
    if management is None:
        yield Finding(
            Level.ADVICE,
            "AMQP tells neither the type of a queue, nor its limits, nor its policies",
            "put ?management=http://host:15672 into the broker's URL, or look: rabbitmqctl list_queues "
            f"{_of_vhost(server.vhost)}name type durable auto_delete arguments effective_policy_definition",
        )
        return
    try:
        nodes = management.running_nodes()
        found = {name: management.queue(name) for name in there}
    except AdapterError as error:
        yield Finding(Level.ERROR, str(error), "check ?management= in the broker's URL")
        return
    for name, about in found.items():
        yield from queue_findings(
            about, dead=topology.dead(there[name]), nodes=nodes, has_default_limit=version >= _LIMIT_SINCE
        )


def _of_vhost(vhost: str) -> str:
    """The option of rabbitmqctl."""
    return "" if vhost == "/" else f"-p {quote(vhost)} "


def queue_findings(
    about: Mapping[str, Any], *, dead: str, nodes: int, has_default_limit: bool
) -> Iterator[Finding]:
    """What the arguments and policies of a queue mean for its messages.

    Args:
        about: as the management API tells it.
        dead: the name of the dead-letter queue, which may be this queue.
        nodes: how many nodes the cluster has.
        has_default_limit: whether a quorum queue has a delivery limit unless it says otherwise.
    """
    found = [
        *_ends(about),
        *_drops(about),
        *(_quorum(about, dead, has_default_limit=has_default_limit) if about.get("type") == "quorum" else ()),
        *_other_type(about, nodes),
    ]
    yield from found or [
        Finding(Level.OK, f"the queue {about['name']} ({about.get('type')}) keeps its messages")
    ]


def _ends(about: Mapping[str, Any]) -> Iterator[Finding]:
    """Whether the queue may go, with the messages in it."""
    name, of_vhost = about["name"], _of_vhost(about.get("vhost", "/"))
    for is_so, what in (
        (
            not about.get("durable", True),
            "is not durable: a restart of the broker deletes it with its messages",
        ),
        (
            about.get("auto_delete"),
            "is deleted with its messages when its last consumer leaves (auto_delete)",
        ),
        (about.get("exclusive"), "is exclusive: it goes with one connection"),
    ):
        if is_so:
            yield Finding(
                Level.ERROR,
                f"the queue {name} {what}",
                "a queue that exists cannot be changed: let its messages be consumed, delete it (rabbitmqctl "
                f"delete_queue {of_vhost}{quote(name)} --if-empty), and make it durable, without auto_delete and not "
                "exclusive, as a worker does when it starts",
            )
    if (after_ms := _setting(about, "expires")) is not None:
        yield Finding(
            Level.ERROR,
            f"the queue {name} is deleted with its messages after {after_ms / 1000:,.0f} s without use (expires)",
            _POLICY,
        )


def _drops(about: Mapping[str, Any]) -> Iterator[Finding]:
    """Whether the queue may drop messages that no consumer has settled."""
    name = about["name"]
    if (ttl_ms := _setting(about, "message-ttl")) is not None:
        yield Finding(
            Level.WARNING,
            f"the queue {name} gives up messages after {ttl_ms / 1000:,.0f} s (message-ttl), processed or not",
            _POLICY,
        )
    limits = [each for each in ("max-length", "max-length-bytes") if _setting(about, each) is not None]
    overflow = _word(about, "overflow") or "drop-head"
    if limits and not overflow.startswith("reject-publish"):
        yield Finding(
            Level.ERROR,
            f"the queue {name} drops its oldest messages when it is full ({', '.join(limits)})",
            "set overflow to reject-publish; " + _POLICY,
        )
    timeout_ms = _setting(about, "consumer-timeout")
    if timeout_ms is not None and timeout_ms < _DEFAULT_TIMEOUT_MS:
        yield Finding(
            Level.WARNING,
            f"the queue {name} returns a message after {timeout_ms / 1000:,.0f} s with a consumer (consumer-timeout): "
            "one that waits behind others, or whose handler is slow, comes again",
            "set it to more than a handler and the messages before it may take",
        )


def _quorum(about: Mapping[str, Any], dead: str, *, has_default_limit: bool) -> Iterator[Finding]:
    name = about["name"]
    limit = _setting(about, "delivery-limit")
    if limit is None and has_default_limit:
        limit = _DEFAULT_LIMIT
    if limit is None or limit < 0:
        return
    if _word(about, "dead-letter-exchange") is None:
        yield Finding(
            Level.ERROR,
            f"the queue {name} drops a message that was returned {limit} times (delivery-limit): it has no "
            "dead-letter-exchange",
            f"set dead-letter-exchange and dead-letter-routing-key={dead} by a policy, or no limit: delivery-limit=-1",
        )
    elif (_word(about, "dead-letter-strategy") or "at-most-once") != "at-least-once":
        yield Finding(
            Level.WARNING,
            f"the queue {name} may lose a message that was returned {limit} times: dead-letter-strategy is "
            "at-most-once",
            "set dead-letter-strategy to at-least-once, and overflow to reject-publish",
        )


def _other_type(about: Mapping[str, Any], nodes: int) -> Iterator[Finding]:
    name = about["name"]
    if about.get("type") == "stream":
        yield Finding(
            Level.ERROR,
            f"{name} is a stream, which the adapter does not support",
            "consume a classic or quorum queue that is bound to the same exchange",
        )
    elif about.get("type") == "classic" and nodes > 1:
        yield Finding(
            Level.WARNING,
            f"the queue {name} is classic: one of {nodes} nodes has its messages, and they are away with it",
            "make it a quorum queue",
        )


def _setting(about: Mapping[str, Any], name: str) -> int | None:
    """A limit by the arguments of a queue and by its policies: the lower one counts."""
    numbers = [value for value in _both(about, name) if isinstance(value, int)]
    return min(numbers, default=None)


def _word(about: Mapping[str, Any], name: str) -> str | None:
    """A word that the arguments of a queue say, or else its policies."""
    return next((str(value) for value in _both(about, name)), None)


def _both(about: Mapping[str, Any], name: str) -> Iterable[Any]:
    given = (
        (about.get("arguments") or {}).get(f"x-{name}"),
        (about.get("effective_policy_definition") or {}).get(name),
    )
    return [value for value in given if value is not None]
