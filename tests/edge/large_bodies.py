"""Sizes of request bodies that share a budget."""

from __future__ import annotations

from pyservice.transport import KIB

JOIN = "/matchmaker/lobbies/join"
LARGE = 900 * KIB
HALF = 5 * 900 * KIB
