"""Snapshots under another config than capture's are refused before a row is written, and again by capture.

Two hosts are two config files here, each read by a `tailrace` process of its own.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import psycopg
import pytest

from cdc.config import load_config
from cdc.logical_messages.signed import read_secret
from cdc.names import Control, control_topic
from cdc.postgres import catalog
from cdc.snapshot.incremental import chunk, watermarks
from cdc.snapshot.incremental.announced import announce
from cdc.snapshot.log import SnapshotLog
from tests.harness.kafka.raw_records import read_raw, topics_under
from tests.harness.pipeline.pipeline import MakePipeline, Pipeline
from tests.harness.pipeline.table_states import marks as incomplete
from tests.harness.pipeline.table_states import wait_for_look
from tests.harness.processes.process import StartProcess
from tests.harness.snapshot.incremental_chunks import ChunkwiseSnapshot
from tests.harness.snapshot.initial_snapshot import WITH_INITIAL_SNAPSHOT, chunks, wait_for_hold

SECRET = "s3cr3t-of-a-person"
EMAIL, ID = '[mask]\n"public.people.email" = "hash"\n', '[mask]\n"public.people.id" = "hash"\n'


def _configure(pipeline: Pipeline, ending: str, name: str = "tailrace.toml") -> Path:
    """Write the pipeline's own config, or another host's, with this text appended."""
    plain = pipeline.config.read_text().partition("[mask]")[0].partition("[columns]")[0]
    file = pipeline.config.with_name(name)
    file.write_text(plain + ending)
    return file


def _people(make_pipeline: MakePipeline, ending: str, **settings: object) -> Pipeline:
    pipeline = make_pipeline(capture={"mask_salt": "of capture"}, **settings)
    pipeline.database.execute("CREATE TABLE people (id text PRIMARY KEY, email text)")
    _configure(pipeline, ending)
    return pipeline


def _assert_nowhere(pipeline: Pipeline, text: str) -> None:
    """No record, aborted ones included, has the secret."""
    topics = topics_under(pipeline.bootstrap, pipeline.prefix)
    assert control_topic(pipeline.prefix, Control.COPY) in topics
    holding = {
        record.topic for record in read_raw(pipeline.bootstrap, *topics, committed=False) if record.holds(text.encode())
    }
    assert not holding


def test_an_incremental_snapshot_under_another_config_is_refused(
    make_pipeline: MakePipeline, tailrace: StartProcess
) -> None:
    """A host whose config lacks the mask may copy neither a table nor keys: exit code 3, and no plain text anywhere."""
    pipeline = _people(make_pipeline, EMAIL)
    capture = pipeline.start()
    pipeline.database.execute("INSERT INTO people VALUES ('1', %s)", [SECRET])
    pipeline.fence(while_running=capture)
    keys = ("--table", "people", "--keys", "1")
    older = _configure(pipeline, "", "elsewhere.toml")
    for what in (keys, keys[:2]):
        refused = tailrace("snapshot", "--config", str(older), *what)
        refused.expect_exit(3, 60)
        assert "public.people" in refused.errors
        assert "[mask]" in refused.errors
    _assert_nowhere(pipeline, SECRET)
    tailrace("snapshot", "--config", str(pipeline.config), *keys).expect_exit(0, 60)
    _assert_nowhere(pipeline, SECRET)


def test_an_initial_snapshot_under_another_config_is_refused(
    make_pipeline: MakePipeline, tailrace: StartProcess
) -> None:
    """Chunks of an initial snapshot must use the settings that the snapshot's record names."""
    pipeline = _people(make_pipeline, EMAIL, snapshot=WITH_INITIAL_SNAPSHOT)
    pipeline.database.execute("INSERT INTO people VALUES ('1', %s)", [SECRET])
    wait_for_hold(pipeline)
    older = _configure(pipeline, "", "elsewhere.toml")
    refused = tailrace("snapshot", "--config", str(older))
    refused.expect_exit(3, 120)
    assert "public.people" in refused.errors
    assert chunks(pipeline) == []
    assert pipeline.records("people") == []
    _assert_nowhere(pipeline, SECRET)


def test_capture_refuses_watermarks_of_another_config(
    make_pipeline: MakePipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Capture refuses the watermarks of a job with another salt and publishes none of its records.

    Under another salt each row has another key, and the end of the snapshot would remove the right rows.
    """
    pipeline = _people(make_pipeline, ID)
    capture = pipeline.start()
    pipeline.database.execute("INSERT INTO people SELECT n, 'a@b' FROM generate_series(1, 20) n")
    pipeline.fence(while_running=capture)
    before = pipeline.end_offsets("people")
    later = ChunkwiseSnapshot.of(pipeline, "people")
    other = _configure(pipeline, ID, "elsewhere.toml")
    other.write_text(other.read_text().replace("of capture", "of another host"))
    strange = replace(later, config=load_config(other))
    monkeypatch.setattr(chunk, "refuse_other_settings", lambda *_: None, raising=False)
    found = strange.read(strange.chunk(1))
    assert not found.done
    assert "public.people" in found.repeat
    with psycopg.connect(pipeline.database.dsn, autocommit=True) as connection:
        began = catalog.current_lsn(connection)
        announce(strange.config.kafka, [strange.plan(began)])
        watermarks.emit_watermark(connection, strange.end(began), read_secret(strange.config.kafka))
    pipeline.fence(while_running=capture)
    assert pipeline.end_offsets("people") == before
    with SnapshotLog(later.config.kafka) as log:
        (copy,) = log.refresh().copies.values()
    assert copy.state == "abandoned"
    assert "public.people" in copy.reason
    assert "watermark_refused" in capture.errors


@pytest.mark.parametrize(
    ("before", "said", "words"),
    [
        (EMAIL, '[mask]\n"public.people.email" = "none"\n', "public.people.email was published with a mask"),
        (
            '[columns]\n"public.people" = ["id"]\n',
            '[columns]\n"public.people" = ["*"]\n',
            "public.people was published with masked or omitted columns",
        ),
    ],
    ids=["mask", "columns"],
)
def test_a_withheld_column_is_published_only_by_an_explicit_setting(
    make_pipeline: MakePipeline, before: str, said: str, words: str
) -> None:
    """A config that no longer withholds a column is refused with exit code 3 unless it says so explicitly.

    With the line, the column is published and existing rows are due for a snapshot; afterwards the line may be removed.
    """
    pipeline = _people(make_pipeline, before)
    capture = pipeline.start()
    pipeline.database.execute("INSERT INTO people VALUES ('1', %s)", [SECRET])
    wait_for_look(pipeline, capture)
    capture.stop()
    pipeline.database.execute("INSERT INTO people VALUES ('2', %s)", [SECRET])
    _configure(pipeline, "")
    refused = pipeline.launch()
    refused.expect_exit(3, 60)
    assert words in refused.errors
    _assert_nowhere(pipeline, SECRET)
    for ending in (said, ""):
        _configure(pipeline, ending)
        capture = pipeline.start()
        wait_for_look(pipeline, capture)
        capture.stop()
    assert list(incomplete(pipeline)) == ["people"]
    published = [record.value["after"] for record in pipeline.records("people")]
    assert [row for row in published if row.get("email") == SECRET] == [{"id": "2", "email": SECRET}]
