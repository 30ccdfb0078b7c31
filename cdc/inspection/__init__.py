"""`tailrace check`: looks at the source and the broker, changes nothing, and says what is not as it must be.

One module per side. Each reads facts first and judges them after; `run` puts the sides together.
"""

from cdc.inspection.findings import Finding, Level, worst
from cdc.inspection.run import inspect

__all__ = ["Finding", "Level", "inspect", "worst"]
