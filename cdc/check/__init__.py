"""`tailrace check`: looks at the source and the broker, changes nothing, and says what is not as it must be.

One module per side. Each reads facts first and judges them after; `run` puts the sides together.
"""

from cdc.check.all_checks import inspect
from cdc.check.findings import Finding, Level, worst

__all__ = ["Finding", "Level", "inspect", "worst"]
