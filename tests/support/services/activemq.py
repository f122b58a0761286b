"""ActiveMQ Classic, with its STOMP connector, and OpenWire for clients in Java."""

import shutil
import socket
from pathlib import Path
from urllib.parse import urlsplit

from tests.support.services.certificate import make_certificate
from tests.support.services.docker import Image
from tests.support.services.process import PrivateServer, free_port

USER, PASSWORD = "consumer", "s3cret-of-the-tests"
MAX_FRAME_BYTES = 1_048_576
IMPATIENCE_S = 0.5
_JAR = Path("/usr/share/activemq/bin/activemq.jar")
_TIMEOUT_S = 5.0


def ping(url: str) -> None:
    """Any answer to a STOMP frame will do: with accounts it is a refusal."""
    parts = urlsplit(url)
    with socket.create_connection((parts.hostname, parts.port), _TIMEOUT_S) as connection:
        connection.sendall(b"STOMP\naccept-version:1.2\nhost:ping\n\n\0")
        if not connection.recv(1):
            raise ConnectionError("no answer to a STOMP frame")


class PrivateActiveMq(PrivateServer):
    """Its options are words, for the configuration: `no-scheduler`, `accounts`, `impatient`, `small-store` and `tls`.

    `accounts`: USER may read and write queues, but not write to any under `locked.`.
    `impatient`: it removes consumers that acknowledged nothing for IMPATIENCE_S.
    `small-store`: its store is full after a few messages of nearly MAX_FRAME_BYTES, until they are consumed.
    `tls`: `tls_url` and the certificate `ca_file` are there too.
    """

    name = "ActiveMQ"
    debian_package = "activemq"
    programs = ("java", "activemq.jar")
    ping = staticmethod(ping)

    def __init__(self, *options: str) -> None:
        super().__init__()
        self._features = frozenset(options)
        self._tls_port = free_port()
        self._jms_port = free_port()

    @classmethod
    def find(cls, program: str) -> str | None:
        """Debian keeps the program as a jar, which `java` runs."""
        if program == _JAR.name:
            return str(_JAR) if _JAR.exists() else None
        return shutil.which(program)

    @property
    def url(self) -> str:
        return f"stomp://127.0.0.1:{self.port}"

    @property
    def jms_url(self) -> str:
        return f"tcp://127.0.0.1:{self._jms_port}"

    @property
    def tls_url(self) -> str:
        return f"stomp+ssl://127.0.0.1:{self._tls_port}"

    @property
    def ca_file(self) -> Path:
        return self.folder / "server.pem"

    def _prepare(self) -> None:
        if "tls" in self._features:
            make_certificate(self._run, self._key_store, self.ca_file, PASSWORD)
        (self.folder / "conf").mkdir()
        (self.folder / "conf" / "activemq.xml").write_text(self._configuration())

    def _command(self) -> list[str]:
        folders = {"home": "/usr/share/activemq", "base": self.folder}
        folders |= {name: self.folder / name for name in ("conf", "data")}
        return [
            "java",
            "-Xmx512m",
            # The broker starts in half the time without the second compiler.
            "-XX:TieredStopAtLevel=1",
            *(f"-Dactivemq.{name}={folder}" for name, folder in folders.items()),
            *("-jar", str(_JAR), "start", f"xbean:file:{self.folder / 'conf' / 'activemq.xml'}"),
        ]

    @property
    def _key_store(self) -> Path:
        return self.folder / "keys.p12"

    def _configuration(self) -> str:
        connectors = [
            f'<transportConnector name="stomp" uri="stomp://127.0.0.1:{self.port}?{_OPTIONS}"/>',
            f'<transportConnector name="openwire" uri="{self.jms_url}"/>',
        ]
        security = ""
        if "tls" in self._features:
            connectors.append(
                f'<transportConnector name="tls" uri="stomp+ssl://127.0.0.1:{self._tls_port}?{_OPTIONS}"/>'
            )
            security = (
                f'<sslContext><sslContext keyStore="file:{self._key_store}" keyStoreType="PKCS12"'
                f' keyStorePassword="{PASSWORD}"/></sslContext>'
            )
        return _XML.format(
            scheduler=str("no-scheduler" not in self._features).lower(),
            data=self.folder / "data",
            plugins=_ACCOUNTS if "accounts" in self._features else "",
            policies=_IMPATIENT if "impatient" in self._features else "",
            store_mb=8 if "small-store" in self._features else 512,
            journal=' journalMaxFileLength="1mb" cleanupInterval="300"'
            if "small-store" in self._features
            else "",
            security=security,
            connectors="".join(connectors),
        )


_OPTIONS = "&amp;".join(
    (
        f"wireFormat.maxFrameSize={MAX_FRAME_BYTES}",
        # Without it each receipt waits about 20 ms for the kernel.
        "transport.tcpNoDelay=true",
        # The broker waits two heartbeats for a client that a busy machine delays, not one.
        "transport.hbGracePeriodMultiplier=2",
    )
)
_ACCOUNTS = f"""<plugins>
  <simpleAuthenticationPlugin><users>
    <authenticationUser username="{USER}" password="{PASSWORD}" groups="users"/>
    <authenticationUser username="root" password="{PASSWORD}" groups="users,operators"/>
  </users></simpleAuthenticationPlugin>
  <authorizationPlugin><map><authorizationMap><authorizationEntries>
    <authorizationEntry queue="*" read="users" write="users" admin="users"/>
    <authorizationEntry queue="*.dead" read="users" write="users" admin="users"/>
    <authorizationEntry queue="locked.>" read="users" write="operators" admin="users"/>
    <authorizationEntry topic=">" read="users" write="users" admin="users"/>
  </authorizationEntries></authorizationMap></map></authorizationPlugin>
</plugins>"""
_IMPATIENT = f"""<destinationPolicy><policyMap><policyEntries><policyEntry queue=">"><slowConsumerStrategy>
  <abortSlowAckConsumerStrategy checkPeriod="100" maxTimeSinceLastAck="{IMPATIENCE_S * 1000:.0f}" maxSlowDuration="100"
    ignoreIdleConsumers="false"/>
</slowConsumerStrategy></policyEntry></policyEntries></policyMap></destinationPolicy>"""
# `enableJournalDiskSyncs`: an acknowledged message reaches the system, which writes it down when it likes.
_XML = """<beans xmlns="http://www.springframework.org/schema/beans"
    xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance"
    xsi:schemaLocation="http://www.springframework.org/schema/beans
      http://www.springframework.org/schema/beans/spring-beans-2.0.xsd
      http://activemq.apache.org/schema/core http://activemq.apache.org/schema/core/activemq-core.xsd">
  <broker xmlns="http://activemq.apache.org/schema/core" brokerName="tests" useJmx="false" persistent="true"
      schedulerSupport="{scheduler}" dataDirectory="{data}">
    {plugins}
    {policies}
    <persistenceAdapter><kahaDB directory="{data}/kahadb" enableJournalDiskSyncs="false"{journal}/></persistenceAdapter>
    {security}
    <systemUsage><systemUsage>
      <storeUsage><storeUsage limit="{store_mb} mb"/></storeUsage>
      <tempUsage><tempUsage limit="128 mb"/></tempUsage>
      <jobSchedulerUsage><jobSchedulerUsage limit="128 mb"/></jobSchedulerUsage>
    </systemUsage></systemUsage>
    <transportConnectors>{connectors}</transportConnectors>
  </broker>
</beans>
"""
IMAGE = Image(
    "apache/activemq-classic:5.18.6",
    port=61613,
    # The scheduler, for delayed messages, is off in the image.
    command=(
        'sh -c \'sed -i "s/<broker /<broker schedulerSupport=\\"true\\" /" conf/activemq.xml'
        " && exec bin/activemq console'"
    ),
    url="stomp://{host}:{port}",
)
