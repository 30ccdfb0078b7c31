"""What was measured, as the one line of JSON that ends the benchmark. Rates are row changes per second."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from tests.bench.latency import Latency
from tests.bench.readers import Drain

OURS, PEER, LIMIT, FLOOR = "tailrace", "debezium", "limit", "floor"
WITH_INITIAL_SNAPSHOT = "inserts"

Table = dict[str, dict[str, float]]


@dataclass(slots=True)
class Results:
    """`drains[backlog][reader]` has one entry per round; of several the median counts."""

    drains: dict[str, dict[str, list[Drain]]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(list)))
    latencies: dict[str, Latency] = field(default_factory=dict)
    memory_by_rows: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))

    def as_json(self) -> dict[str, Any]:
        rates = self._each(lambda drain: drain.rate)
        cpu = self._each(lambda drain: drain.cpu_seconds / drain.rows * 1_000_000, digits=2)
        ratios = {name: _ratio(by_reader, PEER) for name, by_reader in rates.items()}
        known = [ratio for ratio in ratios.values() if ratio is not None]
        return {
            "rates": rates,
            "rates_from_slot": self._each(lambda drain: drain.rows / drain.seconds_from_slot),
            "ratios_debezium": ratios,
            "ratio_debezium": min(known) if known else None,
            "ratio_limit": _ratio(rates.get(WITH_INITIAL_SNAPSHOT, {}), LIMIT),
            "floor_ratios_debezium": {name: _ratio(by_reader, PEER, FLOOR) for name, by_reader in rates.items()},
            "floor_ratio_limit": _ratio(rates.get(WITH_INITIAL_SNAPSHOT, {}), LIMIT, FLOOR),
            "latency_ms": {reader: asdict(latency) for reader, latency in self.latencies.items()},
            "cpu_seconds_per_million": cpu,
            "peak_memory_mb": {
                **self._each(lambda drain: drain.peak_memory_mb, digits=1),
                **{f"transaction_of_{rows}": {OURS: peak} for rows, peak in self._memory_medians().items()},
            },
            "peak_memory_runs_mb": {
                f"transaction_of_{rows}": [round(peak, 1) for peak in peaks]
                for rows, peaks in self.memory_by_rows.items()
            },
            "ratio_memory": self._memory_ratio(),
        }

    def _memory_medians(self) -> dict[int, float]:
        return {rows: round(statistics.median(peaks), 1) for rows, peaks in self.memory_by_rows.items()}

    def _memory_ratio(self) -> float | None:
        """The largest transaction's peak against the smallest one's."""
        medians = self._memory_medians()
        return round(medians[max(medians)] / medians[min(medians)], 3) if medians else None

    def _each(self, figure: Callable[[Drain], float], digits: int = 0) -> Table:
        return {
            backlog: {
                reader: round(statistics.median(figure(drain) for drain in drains), digits)
                for reader, drains in by_reader.items()
            }
            for backlog, by_reader in self.drains.items()
        }


def _ratio(rates: dict[str, float], other: str, one: str = OURS) -> float | None:
    """One's rate against another's; None where one of them did not run."""
    if one not in rates or other not in rates:
        return None
    return round(rates[one] / rates[other], 2)
