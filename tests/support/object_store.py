"""An object store for tests: the S3 server of moto, in a process of its own, on the loopback."""

import itertools
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import boto3
from botocore.config import Config

#: Serves until its standard input ends, which happens with the process that has started it.
_SERVER = """
import logging, sys
from moto.server import ThreadedMotoServer
logging.getLogger("werkzeug").disabled = True
server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()
server.stop()
"""
_numbers = itertools.count()


class ObjectStore(NamedTuple):
    """A server; `url` is its endpoint."""

    url: str

    @property
    def environment(self) -> dict[str, str]:
        """The variables with which a process uses it."""
        keys = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"}
        return {**keys, "AWS_REGION": "us-east-1", "AWS_ENDPOINT_URL": self.url}

    def new_bucket(self) -> str:
        """Make a bucket; its URI."""
        name = f"bucket-{next(_numbers)}-{os.getpid()}"
        self._client().create_bucket(Bucket=name)
        return f"s3://{name}"

    def upload(self, folder: Path, uri: str) -> str:
        """Copy a folder, or a file, of this machine; the URI."""
        bucket, _, prefix = uri.removeprefix("s3://").partition("/")
        client = self._client()
        for file in sorted(folder.rglob("*")) if folder.is_dir() else [folder]:
            if file.is_file():
                key = f"{prefix}/{file.relative_to(folder).as_posix()}" if folder.is_dir() else prefix
                client.put_object(Bucket=bucket, Key=key, Body=file.read_bytes())
        return uri

    def _client(self):
        return boto3.client(
            "s3",
            endpoint_url=self.url,
            region_name="us-east-1",
            aws_access_key_id="key",
            aws_secret_access_key="secret",
            config=Config(proxies={}),
        )


@contextmanager
def serving_objects() -> Iterator[ObjectStore]:
    """A server of its own, without any bucket."""
    with subprocess.Popen(
        [sys.executable, "-c", _SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as server:
        assert server.stdin is not None and server.stdout is not None
        try:
            yield ObjectStore(f"http://127.0.0.1:{int(server.stdout.readline())}")
        finally:
            server.stdin.close()
            server.wait(timeout=300)
