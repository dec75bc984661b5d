"""Starts and ends the Java process of Spark, and checks for Java before.

`gateway.commands.feed_demo` calls `check_java` alone. The steps decide the output, this file does not.
"""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn

from py4j.protocol import Py4JNetworkError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

import matching
from matching.errors import ConfigError, EngineError
from spark_etl.options import EtlOptions

#: Oldest major version of Java that Spark runs on.
MIN_JAVA = 17
JAVA_REMEDY = (
    f"install Java {MIN_JAVA} or newer (Debian, Ubuntu: apt-get install openjdk-17-jre-headless; "
    "macOS: brew install openjdk@17) or point JAVA_HOME at one"
)
NO_SETTINGS: Mapping[str, str] = {}
_STOP_SECONDS = 20
_CONNECT_SECONDS = 10
# Java's C1 compiler alone: 26 s of processor time instead of 47 s for 137,000 tweets. Jobs of hours need C2 as well.
_SHORT_JOB = " -XX:TieredStopAtLevel=1"


def check_java() -> str:
    """Path of the `java` program that Spark would start, by `JAVA_HOME`, else by the PATH.

    Raises
    ------
    ConfigError
        If there is no such program, if its version is below `MIN_JAVA`, or if it does not run; names the remedy.
    """
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if java is None:
        raise ConfigError(f"Spark needs Java, and there is no java on the PATH: {JAVA_REMEDY}")
    try:
        output = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=True).stderr
    except (OSError, subprocess.SubprocessError) as error:
        where = "JAVA_HOME" if home else "the PATH"
        raise ConfigError(
            f"Spark needs Java, and {java} (from {where}) does not run ({error}): {JAVA_REMEDY}"
        ) from None
    found = re.search(r'version "(?:1\.)?(\d+)', output)
    if found is None or int(found[1]) < MIN_JAVA:
        version = found[1] if found else "of unknown version"
        raise ConfigError(f"Spark needs Java {MIN_JAVA} or newer, and {java} is Java {version}: {JAVA_REMEDY}")
    return java


def check_master(master: str) -> None:
    """Check that a Spark master answers, where `master` is `spark://HOST:PORT[,HOST:PORT...]`; else do nothing.

    Spark itself would try to connect for a minute.

    Raises
    ------
    ConfigError
        If no address of `master` accepts a TCP connection within `_CONNECT_SECONDS`.
    """
    if not master.startswith("spark://"):
        return
    refused = []
    for address in master.removeprefix("spark://").split(","):
        host, _, port = address.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), _CONNECT_SECONDS).close()
            return
        except (OSError, ValueError, OverflowError) as error:
            refused.append(f"{address}: {getattr(error, 'strerror', None) or error}")
    raise ConfigError(
        f"master {master}: no Spark master answers ({'; '.join(refused)}); start it, check host and port, or leave "
        "--master out to use this machine alone"
    )


def _configuration(options: EtlOptions, scratch: Path, short: bool, more: Mapping[str, str]) -> SparkConf:
    project = str(Path(matching.__file__).resolve().parents[1])
    search = os.pathsep.join(filter(None, (project, os.environ.get("PYTHONPATH"))))
    settings = {
        "spark.app.name": "skyray-etl",
        "spark.master": options.master,
        "spark.driver.memory": options.driver_memory,
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.extraJavaOptions": "-Dfile.encoding=UTF-8" + (_SHORT_JOB if short else ""),
        # Workers start in the current directory, and would import a `matching` from there.
        "spark.executorEnv.PYTHONSAFEPATH": "1",
        "spark.executorEnv.PYTHONPATH": search,
        "spark.local.dir": str(scratch / "spark"),
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        "spark.log.level": "WARN",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    if not options.master.startswith("local"):
        # Executors elsewhere must be able to reach the driver.
        del settings["spark.driver.bindAddress"], settings["spark.driver.host"]
    return SparkConf(loadDefaults=False).setAll(list((settings | dict(more)).items()))


@contextmanager
def spark_session(
    options: EtlOptions, scratch: Path, short: bool = True, more: Mapping[str, str] = NO_SETTINGS
) -> Iterator[SparkSession]:
    """Start Spark in its own Java process, and end that process on exit.

    Spark logs to `scratch/spark.log`. `short` tunes Java for a job of minutes; `more` are further settings of Spark.

    Raises
    ------
    ConfigError
        If Java is missing, too old or does not start with these settings, or if no master answers.
    EngineError
        If this process runs Spark already; pass that session to `run_etl`.
    """
    if SparkContext._active_spark_context is not None:
        raise EngineError("this process already runs Spark: pass its session to run_etl(spark=...) or stop it first")
    check_java()
    check_master(options.master)
    scratch.mkdir(parents=True, exist_ok=True)
    main = threading.current_thread() is threading.main_thread()
    handler = signal.getsignal(signal.SIGINT) if main else None  # SparkContext sets its own and leaves it behind
    conf = _configuration(options, scratch, short, more)
    gateway = None
    log_path = scratch / "spark.log"
    try:
        with log_path.open("wb") as log:
            try:
                gateway = launch_gateway(conf, {"stdout": log, "stderr": log})
                context = SparkContext(conf=conf, gateway=gateway)
            except (PySparkException, RuntimeError, OSError) as error:
                raise ConfigError(_start_failure(options, log_path)) from error
            except Exception as error:  # py4j's errors for a bad master or memory
                if type(error).__module__.split(".")[0] != "py4j":
                    raise
                raise ConfigError(_start_failure(options, log_path)) from error
            # PySpark's accumulator server prints a traceback if Java ends before that server does.
            context._accumulatorServer.handle_error = lambda *_: None  # type: ignore[union-attr]
            context.pythonExec = sys.executable  # else workers run the first python3 on the PATH
            spark = SparkSession(context)
            yield spark
            spark.stop()
    finally:
        if main:
            signal.signal(signal.SIGINT, handler)
        _end(gateway)


def _start_failure(options: EtlOptions, log_path: Path) -> str:
    lines = log_path.read_text(errors="replace").splitlines()
    errors = [line for line in lines if re.search(r"error|exception|invalid|memory", line, re.IGNORECASE)]
    cause = (errors or lines or ["no message"])[0].strip()
    return (
        f"Spark does not start with master {options.master!r} and driver memory {options.driver_memory!r} ({cause}): "
        "check both, and that Java is complete (skyray doctor)"
    )


def _hush(gateway: Any) -> None:
    """Make every command to Java raise `Py4JNetworkError`, those in flight included.

    A finalizer of py4j in another thread may send a command while Java ends. Without this py4j would log the broken
    connection by the root logger; finalizers ignore the exception.
    """

    def refuse(*_: Any, **__: Any) -> NoReturn:
        raise Py4JNetworkError("Java has ended")

    client = gateway._gateway_client
    client._should_retry = refuse  # py4j calls this after a broken connection, before it logs
    client.send_command = refuse


def _end(gateway: object) -> None:
    """End the Java process by signal: after an interrupt the connection may be in any state."""
    process = getattr(gateway, "proc", None)
    if process is not None:
        _hush(gateway)
        process.terminate()
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(_STOP_SECONDS)
        process.stdin.close()
    if gateway is not None:
        with suppress(Exception):
            gateway.shutdown()  # type: ignore[attr-defined]
    SparkContext._active_spark_context = None
    SparkContext._gateway = None
    SparkContext._jvm = None
    SparkSession._instantiatedSession = None
