"""The benchmark of the ETL: stages are added up by process, and a run that counts otherwise is noticed."""

import json
from contextlib import nullcontext
from pathlib import Path

import pytest

from benchmarks import etl
from spark_etl.job import EtlProgress


@pytest.mark.parametrize("lost", [0, 1])
def test_run_that_counts_other_words_than_the_file_has_is_noticed(lost, monkeypatch):
    def run(options, on_progress, spark):
        on_progress(EtlProgress("clean", 2, 5, None))
        on_progress(EtlProgress("clean", 2, 5, 0.5, 300))
        texts = [json.loads(line)["text"].split() for line in Path(options.inputs[0]).read_text().splitlines()]
        words = sum(texts, [])
        return {
            "kept": len(texts), "total_tokens": len(words) - lost, "vocabulary_size": len(set(words)), "files": {}
        }  # fmt: skip

    monkeypatch.setattr(etl, "run_etl", run)
    monkeypatch.setattr(etl, "spark_session", lambda *_: nullcontext())
    report = etl.bench(300, 2, tell=lambda _: None)
    assert report["exact"] == (not lost) and len(report["runs"]) == 2
    assert report["clean"] == 0.5 and {"clean_driver", "clean_java", "clean_workers"} < set(report)
