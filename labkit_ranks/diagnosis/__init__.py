"""Find faults in a distributed script by running it on simulated ranks."""

from .check_up import RanksDiagnosis, diagnose_ranks

__all__ = ["RanksDiagnosis", "diagnose_ranks"]
