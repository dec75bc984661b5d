"""Apache Kafka itself on this machine: one node, broker and controller in one process (KRaft), on loopback alone.

`python -m tests.support.apache_kafka` fetches its jars by Maven into a folder outside of the checkout, once; tests
marked `kafka` run where they are. It needs the standard library and the client library alone.
"""

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Self

#: Built for Java 17.
VERSION = "4.3.1"
_CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "skyray")
#: The folder of the jars.
JARS = Path(os.environ.get("KAFKA_JARS") or _CACHE / f"kafka-{VERSION}")
#: Addresses of the nodes of this process.
RUNNING: set[str] = set()
_DEADLINE_S = 120.0
#: Any 16 bytes in base64.
_CLUSTER = "c2t5cmF5LXRlc3RzLTAwMQ"
_POM = f"""<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>skyray</groupId><artifactId>broker</artifactId><version>1</version>
  <dependencies>
    <dependency><groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>{VERSION}</version></dependency>
  </dependencies>
</project>
"""
#: A small heap, and no compiler that takes a core of its own for long.
_JAVA = ("-Xms64m", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Djava.awt.headless=true")
#: One of each, since one node has all; the cleaner's memory is of the heap.
_PROPERTIES = """
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT
log.dirs={folder}
auto.create.topics.enable=false
num.network.threads=1
num.io.threads=2
background.threads=2
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=1
transaction.abort.timed.out.transaction.cleanup.interval.ms=500
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
log.cleaner.threads=1
log.cleaner.dedupe.buffer.size=2097152
log.cleaner.backoff.ms=200
log.retention.check.interval.ms=500
file.delete.delay.ms=100
"""


@cache
def admin_of(address: str) -> Any:
    """A client that administrates the node at an address; one for the whole process, which is fast to ask."""
    from confluent_kafka.admin import AdminClient

    return AdminClient({"bootstrap.servers": address, "log_level": 0})


def is_there() -> bool:
    """Whether the jars are on this machine, and Java."""
    return java() is not None and any(JARS.glob("kafka_2.13-*.jar"))


def java() -> str | None:
    """The program, by `JAVA_HOME`, else by the PATH."""
    home = os.environ.get("JAVA_HOME")
    return shutil.which("java", path=os.path.join(home, "bin") if home else None)


def fetch() -> None:
    """Fetch the jars by Maven; they are in their folder whole or not at all. Raises OSError, CalledProcessError."""
    if is_there():
        return
    JARS.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=JARS.parent) as name:
        pom, jars = Path(name, "pom.xml"), Path(name, "jars")
        pom.write_text(_POM)
        command = ["mvn", "--batch-mode", "--quiet", f"--file={pom}", "dependency:copy-dependencies"]
        subprocess.run([*command, f"-DoutputDirectory={jars}", "-DincludeScope=runtime"], check=True, timeout=900)
        jars.rename(JARS)


class ApacheKafka:
    """A node whose logs are in a folder; it can be killed and started again.

    Parameters
    ----------
    folder : Path
        Made if it is not there.
    *properties
        More lines of its configuration.

    Attributes
    ----------
    address : str
    process : subprocess.Popen, optional
    """

    def __init__(self, folder: Path, *properties: str):
        self._folder = folder
        self.process: subprocess.Popen[bytes] | None = None
        port, controller = _free_ports(2)
        self.address = f"127.0.0.1:{port}"
        RUNNING.add(self.address)
        text = _PROPERTIES.format(port=port, controller=controller, folder=folder / "logs")
        folder.mkdir(parents=True, exist_ok=True)
        self._config = folder / "server.properties"
        self._config.write_text(text + "\n".join(properties) + "\n")
        self._run("kafka.tools.StorageTool", "format", "--cluster-id", _CLUSTER, "--config", str(self._config))

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        RUNNING.discard(self.address)
        self.kill()

    def start(self) -> None:
        """Start it, and wait until it answers."""
        from confluent_kafka import KafkaException

        with open(self._folder / "output", "ab") as output:
            command = self._command("kafka.Kafka", str(self._config))
            self.process = subprocess.Popen(command, stdout=output, stderr=output)
        until_s = time.monotonic() + _DEADLINE_S
        while True:
            with contextlib.suppress(KafkaException):
                if self.admin.list_topics(timeout=1).brokers:
                    return
            assert self.process.poll() is None and time.monotonic() < until_s, self._said()
            threading.Event().wait(0.05)

    def kill(self) -> None:
        """SIGKILL, and wait."""
        if self.process is not None:
            self.process.kill()
            self.process.wait(20)
            self.process = None

    @property
    def admin(self) -> Any:
        """A client that administrates."""
        return admin_of(self.address)

    def create(self, topic: str, partitions: int = 1, **config: str) -> None:
        """Create a topic, with properties whose dots are underscores."""
        from confluent_kafka.cimpl import NewTopic

        named = {name.replace("_", "."): value for name, value in config.items()}
        self._done(self.admin.create_topics([NewTopic(topic, partitions, config=named)]))
        self._await(lambda topics: topic in topics)

    def delete(self, *topics: str) -> None:
        """Delete topics, and wait until the broker does not list them."""
        self._done(self.admin.delete_topics(list(topics)))
        self._await(lambda listed: not listed & set(topics))

    def widen(self, topic: str, partitions: int) -> None:
        """Give a topic more partitions."""
        from confluent_kafka.cimpl import NewPartitions

        self._done(self.admin.create_partitions([NewPartitions(topic, partitions)]))

    def remove_before(self, topic: str, partition: int, offset: int) -> None:
        """Remove the records before an offset, as retention does."""
        from confluent_kafka import TopicPartition

        self._done(self.admin.delete_records([TopicPartition(topic, partition, offset)]))

    def send(self, topic: str, rows: Sequence[bytes], partitions: int = 1) -> None:
        """Publish rows, one to each partition in turn, and wait until the broker has them."""
        from confluent_kafka import Producer

        producer = Producer({"bootstrap.servers": self.address, "log_level": 0})
        for number, row in enumerate(rows):
            producer.produce(topic, row, partition=number % partitions)
            if number % 1_000 == 999:
                producer.poll(0)
        assert producer.flush(60) == 0

    def _await(self, condition: Callable[[set[str]], bool]) -> None:
        """Wait until it holds of the topics that the broker lists, which follow a little behind its answers."""
        until_s = time.monotonic() + _DEADLINE_S
        while not condition(set(self.admin.list_topics(timeout=10).topics)):
            assert time.monotonic() < until_s
            threading.Event().wait(0.02)

    @staticmethod
    def _done(answers: Any) -> None:
        for answer in answers.values():
            answer.result(30)

    def _command(self, main: str, *arguments: str) -> list[str]:
        program = java()
        assert program is not None, "there is no Java"
        return [program, *_JAVA, "-cp", f"{JARS}/*", main, *arguments]

    def _run(self, main: str, *arguments: str) -> None:
        done = subprocess.run(self._command(main, *arguments), capture_output=True, text=True, timeout=_DEADLINE_S)
        assert done.returncode == 0, done.stdout + done.stderr

    def _said(self) -> str:
        return (self._folder / "output").read_text(errors="replace")[-4_000:]


def _free_ports(count: int) -> list[int]:
    """Ports that are free now, all different."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


if __name__ == "__main__":
    try:
        fetch()
    except (OSError, subprocess.SubprocessError) as error:
        sys.exit(f"the jars of Apache Kafka {VERSION} cannot be fetched: {error}")
