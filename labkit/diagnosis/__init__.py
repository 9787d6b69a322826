"""A check-up for the user's own model: would it survive DataParallel?"""

from .checkup import diagnose
from .finding import Diagnosis, Finding

__all__ = ["Diagnosis", "Finding", "diagnose"]
