from __future__ import annotations

from pyservice._native import (
    Buckets,
    ConnectionAdmission,
    ConnectionBudget,
    Front,
    FrontRecord,
    Matchmaker,
    Namespace,
    Namespaces,
    OperationLimits,
    PlayerAddresses,
    PublicCertificate,
    TrustedProxies,
    acked_bytes,
    check_idempotency_key,
    packed_client,
    read_trace,
)

__all__ = [
    "Buckets",
    "ConnectionAdmission",
    "ConnectionBudget",
    "Front",
    "FrontRecord",
    "Matchmaker",
    "Namespace",
    "Namespaces",
    "OperationLimits",
    "PlayerAddresses",
    "PublicCertificate",
    "TrustedProxies",
    "acked_bytes",
    "check_idempotency_key",
    "packed_client",
    "read_trace",
]
