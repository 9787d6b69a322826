"""A check-up of a distributed script: it runs on simulated ranks, and what it does in each is looked at."""

from .check_up import RanksDiagnosis, diagnose_ranks

__all__ = ["RanksDiagnosis", "diagnose_ranks"]
