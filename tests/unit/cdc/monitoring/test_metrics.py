"""Each metric is documented, equals the record, and is absent where its value is unknown."""

from __future__ import annotations

import json
import re
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from cdc.config import Config
from cdc.monitoring.status_record import PipelineStatus, StoreStatus
from cdc.monitoring.web.metrics import exposition
from tests.harness.dashboard.metric_names import names_scraped, names_used
from tests.harness.dashboard.sample_statuses import busy, row_parked, shop_config, store_down

ROOT = Path(__file__).parents[4]


def _values(record: PipelineStatus) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    scrape = exposition(lambda: record).decode()
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(scrape)
        for sample in family.samples
    }


def _config(folder: Path) -> Config:
    return shop_config(folder)


def test_what_is_exposed_is_what_the_record_says(tmp_path: Path) -> None:
    """Metrics have units in their names and one state at a time, and a store that is down says so."""
    record = store_down(_config(tmp_path))
    values = _values(record)
    cache = (("store", "cache"),)
    assert values["tailrace_store_lag_seconds", cache] == 372.0
    assert values["tailrace_store_up", cache] == 0.0
    assert values["tailrace_store_parked_rows", cache] == 3.0
    assert values["tailrace_ready", ()] == 0.0
    states = {labels: value for (name, labels), value in values.items() if name == "tailrace_hop_state"}
    assert sum(states.values()) == len(record.hops)


def test_a_row_that_capture_parked_is_counted_for_its_table_and_every_store(tmp_path: Path) -> None:
    """A parked row is counted for its table and every store, and other tables have 0."""
    values = _values(row_parked(_config(tmp_path)))
    parked = {dict(labels).get("table"): value for (name, labels), value in values.items() if "capture_parked" in name}
    assert (parked["public.orders"], parked["public.products"]) == (1.0, 0.0)
    assert values["tailrace_store_parked_rows", (("store", "warehouse"),)] == 1.0


def test_an_unknown_value_is_absent_and_its_name_is_not(tmp_path: Path) -> None:
    """An unknown lag has no sample, since 0 would be wrong; the metric's name is still exposed."""
    record = busy(_config(tmp_path))
    unknown = PipelineStatus(
        read_at=record.read_at,
        prefix="shop",
        source=record.source,
        slot=record.slot,
        topics=record.topics,
        stores=(StoreStatus(name="cache", kind="redis", problem="no answer"),),
    )
    assert not [labels for name, labels in _values(unknown) if name == "tailrace_store_lag_seconds"]
    assert "tailrace_store_lag_seconds" in names_scraped(exposition(lambda: unknown).decode())
    assert names_scraped(exposition(lambda: None).decode()) == {"tailrace_build_info"}


def test_every_metric_is_documented_and_every_name_that_is_used_exists(tmp_path: Path) -> None:
    """docs/reference/metrics.md, the Grafana dashboard and the alert rules use only exposed names."""
    exposed = names_scraped(exposition(lambda: busy(_config(tmp_path))).decode())
    used = names_used()
    assert used["docs/reference/metrics.md"] == exposed
    assert all(names and names <= exposed for names in used.values()), used
    json.loads((ROOT / "deploy/grafana/tailrace.json").read_text())


def test_the_page_on_metrics_says_what_the_scrape_says(tmp_path: Path) -> None:
    """The page on metrics has the HELP lines word for word."""
    page = (ROOT / "docs/reference/metrics.md").read_text()
    documented = dict(re.findall(r"^\| `(tailrace_\w+)` \| [^|]* \| (.+?) \|$", page, re.MULTILINE))
    families = text_string_to_metric_families(exposition(lambda: busy(_config(tmp_path))).decode())
    helps = {family.name: family.documentation.rstrip(".") for family in families if "build" not in family.name}
    assert {name: text for name, text in documented.items() if "build" not in name} == helps
