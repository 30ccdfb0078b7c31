"""Seeing how the pipeline does: one record of every hop, which `lag`, `/metrics`, the page and alerts all read.

source, log and stores are asked by readers of their own (`source_facts`, `log_facts`, `store_facts`), put together into
one `record.Record` (`assembling`), and judged once (`judging`). Nothing here moves a row.
"""
