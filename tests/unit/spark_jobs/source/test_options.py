"""The options of the data source: one clear line for each mistake, and no secret in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from cdc.errors import UsageError
from spark_jobs.source.batch_reader import plan
from spark_jobs.source.options import SourceOptions
from spark_jobs.source.table_topic import TableTopicFacts

PLACE = {"table": "public.t", "bootstrap": "broker:9092", "prefix": "shop"}


def test_options_come_from_spark_or_from_the_config(tmp_path: Path) -> None:
    """`bootstrap` and `prefix`, the file that `config` names, or tailrace.toml in the working directory."""
    file = tmp_path / "tailrace.toml"
    file.write_text('[source]\ndsn = "postgresql://x@y/z"\n[kafka]\nbootstrap = "other:1"\nprefix = "p"\n')
    direct = SourceOptions.read({**PLACE, "kafka.security.protocol": "SSL", "maxRecordsPerBatch": "7"}, tmp_path)
    assert direct.kafka["bootstrap.servers"] == "broker:9092"
    assert direct.kafka["security.protocol"] == "SSL"
    assert (direct.prefix, direct.max_records_per_batch, direct.as_text) == ("shop", 7, False)
    for options in ({"table": "public.t", "CONFIG": str(file)}, {"table": "public.t"}):
        found = SourceOptions.read(options, tmp_path)
        assert (found.kafka["bootstrap.servers"], found.prefix) == ("other:1", "p")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"table": "public.t"}, "No broker"),
        ({"bootstrap": "b:1", "prefix": "p"}, "Name the table"),
        ({"table": "public.t", "bootstrap": "b:1"}, '"prefix" is missing'),
        ({**PLACE, "config": "x"}, 'either the option "config"'),
        ({**PLACE, "tabel": "x"}, "no option 'tabel'. Did you mean 'table'"),
        ({**PLACE, "types": "json"}, "must be typed or text"),
        ({**PLACE, "maxRecordsPerBatch": "0"}, "a number from 1 up"),
    ],
)
def test_a_wrong_option_is_one_clear_line(options: dict[str, str], message: str, tmp_path: Path) -> None:
    """The message names the option."""
    with pytest.raises(UsageError, match=message) as error:
        SourceOptions.read(options, tmp_path)
    assert "\n" not in str(error.value)


def test_no_secret_is_shown() -> None:
    """Neither the options nor their errors show a password."""
    options = SourceOptions.read({**PLACE, "kafka.sasl.password": "hunter2"})
    assert options.kafka["sasl.password"] == "hunter2"
    assert "hunter2" not in repr(options)


def test_big_partitions_are_divided_by_keys() -> None:
    """A task has at most so many records to note; an empty partition has no task."""
    facts = TableTopicFacts(topic_id="a", starts=[0, 0, 5], ends=[], cleanup_policy="compact", delete_retention_ms=1)
    slices = plan("t", facts, [10, 0, 26], 10, is_complete=True)
    assert [(each.range.partition, each.number, each.count) for each in slices] == [
        (0, 0, 1),
        (2, 0, 3),
        (2, 1, 3),
        (2, 2, 3),
    ]
