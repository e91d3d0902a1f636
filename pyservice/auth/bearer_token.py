from __future__ import annotations

from pyservice._native import bearer_token

__all__ = ["bearer_token"]
