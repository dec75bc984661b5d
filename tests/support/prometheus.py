"""A real Prometheus that scrapes one address, and its answers."""

import json
import socket
import subprocess
import tempfile
import threading
import time
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any, Self
from urllib.error import HTTPError, URLError

_CONFIG = """
global: {{scrape_interval: 500ms, scrape_timeout: 400ms}}
scrape_configs:
  - job_name: skyray
    {targets}
"""


class Prometheus:
    """Prometheus of the machine on a free port of the loopback interface, with its data in a temporary folder.

    Parameters
    ----------
    target : str or Path
        HOST:PORT that has `/metrics`, or a folder of files that list some.
    """

    def __init__(self, target: str | Path):
        self._folder = tempfile.TemporaryDirectory(prefix="skyray-prometheus-")
        folder = Path(self._folder.name)
        static = f'static_configs: [{{targets: ["{target}"]}}]'
        of_files = f'file_sd_configs: [{{files: ["{target}/*.json"], refresh_interval: 1s}}]'
        targets = of_files if isinstance(target, Path) else static
        (folder / "prometheus.yml").write_text(_CONFIG.format(targets=targets))
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        self._log = open(folder / "log", "w+")  # noqa: SIM115 - `__exit__` closes it
        self._process = subprocess.Popen(
            [
                "prometheus",
                f"--config.file={folder / 'prometheus.yml'}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stdout=self._log,
            stderr=self._log,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(20)
        self._log.close()
        self._folder.cleanup()

    def ask(self, query: str) -> list[dict[str, Any]]:
        """The samples of a query now; raises for one that Prometheus refuses."""
        query = urllib.parse.urlencode({"query": query})
        with urllib.request.urlopen(f"{self.url}/api/v1/query?{query}", timeout=10) as answer:
            found = json.load(answer)
        assert found["status"] == "success", found
        return found["data"]["result"]

    def await_samples(self, query: str, seconds: float = 300) -> list[dict[str, Any]]:
        """Poll until a query has samples."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                found = self.ask(query)
            except HTTPError as error:
                assert error.code == 503, f"{query}: {error.read().decode()}"  # it starts
                found = []
            except (ConnectionError, URLError):
                found = []
            if found:
                return found
            assert self._process.poll() is None, self._said()
            assert time.monotonic() < deadline, f"no sample of {query}"
            threading.Event().wait(0.1)

    def _said(self) -> str:
        self._log.seek(0)
        return self._log.read()
