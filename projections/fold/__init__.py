"""What each accepted record makes of the rows. Pure; a file per subject, one function per event type."""

from projections.fold.fold import ROWS_UNCHANGED, RULES, WHOLE, fold, wanted, wanted_attempts
from projections.fold.moment import Moment

__all__ = ["ROWS_UNCHANGED", "RULES", "WHOLE", "Moment", "fold", "wanted", "wanted_attempts"]
