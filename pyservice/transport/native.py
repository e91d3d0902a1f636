from __future__ import annotations

from pyservice._native import (
    Buckets,
    ConnectionAdmission,
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
    "ConnectionAdmission",
    "ConnectionBudget",
    "Front",
    "FrontRecord",
    "Namespace",
    "Namespaces",
    "PlayerAddresses",
    "PublicCertificate",
]
