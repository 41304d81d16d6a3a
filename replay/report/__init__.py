"""The report on what-if replays: figures of outcomes, and of their differences, as a page, JSON and Parquet.

    outcomes -> study (all figures, once) -> page, record (JSON), tables (Arrow)

It reads replay.outcome and nothing else of a replay: whatever makes Outcomes can be reported on.
"""

from replay.report.losses import Rates
from replay.report.notes import Notes
from replay.report.study import Study, study
from replay.report.tables import tables
from replay.report.write import Paths, write_report

__all__ = ["Notes", "Paths", "Rates", "Study", "study", "tables", "write_report"]
