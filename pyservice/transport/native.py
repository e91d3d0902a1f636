from __future__ import annotations

from pyservice._native import (
    Buckets,
    ConnectionBudget,
    Front,
    FrontRecord,
    Namespace,
    Namespaces,
    PlayerAddresses,
    PublicCertificate,
)

__all__ = [
    "Buckets",
    "ConnectionBudget",
    "Front",
    "FrontRecord",
    "Namespace",
    "Namespaces",
    "PlayerAddresses",
    "PublicCertificate",
]
