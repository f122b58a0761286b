"""Real servers for the tests."""

from tests.support.services import activemq, kafka, mariadb, postgres, rabbitmq, redis
from tests.support.services.activemq import PrivateActiveMq
from tests.support.services.kafka import PrivateKafka
from tests.support.services.mariadb import PrivateMariaDb
from tests.support.services.pool import Lender, ServicePool
from tests.support.services.postgres import PrivatePgBouncer, PrivatePostgres
from tests.support.services.process import PrivateServer, ServerFailedError
from tests.support.services.prometheus import PrivatePrometheus
from tests.support.services.rabbitmq import PrivateRabbitMq
from tests.support.services.redis import PrivateRedis, own_redis_database
from tests.support.services.selection import Service, ServiceMissingError, is_required
from tests.support.services.spares import SpareServers
from tests.support.services.sql import own_database

MYSQL = Service("MySQL or MariaDB", "IDEMPOTENT_TEST_MYSQL_URL", mariadb.IMAGE, PrivateMariaDb)
POSTGRES = Service("PostgreSQL", "IDEMPOTENT_TEST_POSTGRES_URL", postgres.IMAGE, PrivatePostgres)
ACTIVEMQ = Service("ActiveMQ", "IDEMPOTENT_TEST_STOMP_URL", activemq.IMAGE, PrivateActiveMq)
REDIS = Service("Redis", "IDEMPOTENT_TEST_REDIS_URL", redis.IMAGE, PrivateRedis)
RABBITMQ = Service("RabbitMQ", "IDEMPOTENT_TEST_AMQP_URL", rabbitmq.IMAGE, PrivateRabbitMq)
KAFKA = Service("Kafka", "IDEMPOTENT_TEST_KAFKA_BOOTSTRAP", kafka.IMAGE, PrivateKafka)
# Those that the processes of pytest-xdist share. Not Kafka: tests use the same names of consumer groups.
SERVICES = [MYSQL, POSTGRES, REDIS, RABBITMQ, ACTIVEMQ]

__all__ = [
    "ACTIVEMQ",
    "KAFKA",
    "MYSQL",
    "POSTGRES",
    "RABBITMQ",
    "REDIS",
    "SERVICES",
    "Lender",
    "PrivateActiveMq",
    "PrivateKafka",
    "PrivateMariaDb",
    "PrivatePgBouncer",
    "PrivatePostgres",
    "PrivatePrometheus",
    "PrivateRabbitMq",
    "PrivateRedis",
    "PrivateServer",
    "ServerFailedError",
    "Service",
    "ServiceMissingError",
    "ServicePool",
    "SpareServers",
    "is_required",
    "own_database",
    "own_redis_database",
]
