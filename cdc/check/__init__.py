"""`tailrace check`: read-only checks of the source, the brokers, the topics and the stores.

One module per subject. Each module first reads facts and then turns them into findings. `all_checks` runs all of them.
"""

from cdc.check.all_checks import inspect
from cdc.check.findings import Finding, Level, worst

__all__ = ["Finding", "Level", "inspect", "worst"]
