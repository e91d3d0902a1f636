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
    TrustedProxies,
    acked_bytes,
    packed_client,
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
    "TrustedProxies",
    "acked_bytes",
    "packed_client",
]
