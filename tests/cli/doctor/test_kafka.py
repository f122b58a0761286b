"""Topics that are missing, remove records, or have too few copies are found; no topic is made and no group joined."""

import secrets

import pytest

from idempotent.adapters.kafka.findings import TopicFacts, topic_findings
from idempotent.admin import Level
from tests.adapters.kafka.broker import Broker

DAY_MS = 86_400_000


@pytest.fixture
def broker(kafka_bootstrap):
    return Broker(kafka_bootstrap)


@pytest.fixture
def doctor(cli, broker):
    def ask(topic, *words, options=""):
        url = f"kafka://{broker.bootstrap}{options}"
        return cli("doctor", "--broker", url, "--subject", topic, *words, "--json")

    return ask


def name():
    return f"orders-{secrets.token_hex(6)}"


def levels(answer, part):
    return [line["level"] for line in answer.lines if part in line["what"]]


def test_topics_of_default_settings_are_healthy(doctor, broker):
    topic = name()
    broker.make(topic)
    broker.make(f"{topic}.dlq", **{"retention.ms": "-1"})
    answer = doctor(topic)
    assert answer.code == 0, answer.out
    assert levels(answer, "the cluster has one broker") == ["advice"]
    assert levels(answer, f"the topic {topic} keeps its records") == ["ok"]


def test_missing_topics_are_found_and_none_is_made(doctor, broker):
    topic = name()
    before = _state(broker)
    answer = doctor(topic, options="?retry_topic=true&ordering=none")
    assert answer.code == 1
    assert levels(answer, f"the topic {topic} does not exist") == ["error"]
    assert levels(answer, f"the dead-letter topic {topic}.dlq does not exist") == ["error"]
    assert levels(answer, f"the retry topic {topic}.GROUP.retry does not exist") == ["error"]
    assert _state(broker) == before
    broker.make(topic)
    broker.make("everything.dead-" + topic)
    broker.make(f"{topic}.billing.retry")
    options = f"?retry_topic=true&ordering=none&dead_letter_topic=everything.dead-{topic}"
    assert not levels(doctor(topic, options=options), "does not exist")


def _state(broker):
    """All topics and groups."""
    groups = broker.admin.list_consumer_groups().result(30)
    return set(broker.admin.list_topics(timeout=30).topics), {each.group_id for each in groups.valid}


@pytest.mark.slow
def test_no_topic_is_made_where_brokers_make_those_that_are_asked_for(cli, private_kafka):
    server = private_kafka("--override", "auto.create.topics.enable=true")
    broker, topic = Broker(server.url), name()
    before = _state(broker)
    answer = cli("doctor", "--broker", f"kafka://{server.url}", "--subject", topic, "--json")
    assert _state(broker) == before
    assert levels(answer, "dead-letter topic") == ["warning"]


@pytest.mark.parametrize(
    ("of", "settings", "said"),
    [
        ("", {"retention.ms": str(DAY_MS // 24)}, "removes records after 60 min"),
        ("", {"cleanup.policy": "compact"}, "is compacted"),
        ("", {"retention.bytes": "1000000"}, "above 1,000,000 bytes"),
        ("", {"unclean.leader.election.enable": "true"}, "unclean.leader.election.enable"),
        (".dlq", {"retention.ms": str(DAY_MS)}, "removes dead letters after 24 h"),
        (".dlq", {"cleanup.policy": "compact"}, "is compacted"),
    ],
)
def test_a_setting_under_which_records_go_is_found(doctor, broker, of, settings, said):
    topic = name()
    for each in ("", ".dlq"):
        broker.make(topic + each, **(settings if each == of else {}))
    answer = doctor(topic)
    assert (answer.code, levels(answer, said)) == (1, ["warning"]), answer.out


def test_records_that_outlive_the_keys_are_found(doctor, broker):
    topic = name()
    broker.make(topic, **{"retention.ms": str(10 * DAY_MS)})
    broker.make(f"{topic}.dlq")
    assert levels(doctor(topic), "longer than the brokers keep offsets") == ["advice"]
    assert levels(doctor(topic, "--redelivery-horizon", "7d"), "longer than --redelivery-horizon") == [
        "warning"
    ]
    assert doctor(topic, "--redelivery-horizon", "10d").code == 0


@pytest.mark.slow  # it is given ten seconds
def test_a_broker_that_is_not_there_has_an_exit_code_of_its_own(cli):
    answer = cli("doctor", "--broker", "kafka://127.0.0.1:1", "--json")
    assert (answer.code, answer.lines[0]["level"]) == (5, "error")
    assert "127.0.0.1:1" in answer.lines[0]["what"]


def facts(replicas, in_sync, least):
    settings = {"min.insync.replicas": str(least), "retention.ms": "-1"}
    return TopicFacts("orders", replicas, in_sync, settings)


@pytest.mark.parametrize(
    ("topic", "nodes", "level"),
    [
        (facts(3, 3, 2), 3, Level.OK),
        (facts(1, 1, 1), 1, Level.OK),
        (facts(1, 1, 1), 3, Level.WARNING),
        (facts(3, 3, 1), 3, Level.WARNING),
        (facts(3, 2, 2), 3, Level.WARNING),
        (facts(3, 1, 2), 3, Level.ERROR),
        (facts(3, 3, 3), 3, Level.ADVICE),
        (facts(1, 1, 2), 1, Level.ERROR),
        (TopicFacts("orders", 3, 3, None), 3, Level.ADVICE),
    ],
)
def test_what_needs_several_brokers_is_judged_by_what_they_would_tell(topic, nodes, level):
    found = topic_findings(topic, nodes=nodes, is_dead=False, offsets_kept_s=None, horizon_s=None)
    assert [each.level for each in found] == [level]
