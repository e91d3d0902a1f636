from __future__ import annotations

from pyservice._native import Buckets as Buckets
from pyservice._native import ConnectionAdmission as ConnectionAdmission
from pyservice._native import ConnectionBudget as ConnectionBudget
from pyservice._native import Front as Front
from pyservice._native import FrontRecord as FrontRecord
from pyservice._native import Matchmaker as Matchmaker
from pyservice._native import Namespace as Namespace
from pyservice._native import Namespaces as Namespaces
from pyservice._native import OperationLimits as OperationLimits
from pyservice._native import PublicCertificate as PublicCertificate
from pyservice._native import Routes as Routes
from pyservice._native import TrustedProxies as TrustedProxies
from pyservice._native import acked_bytes as acked_bytes
from pyservice._native import callers_of as callers_of
from pyservice._native import check_body_form as check_body_form
from pyservice._native import check_idempotency_key as check_idempotency_key
from pyservice._native import coordinates as coordinates
from pyservice._native import grpc_status as grpc_status
from pyservice._native import packed_client as packed_client
from pyservice._native import problem_json as problem_json
from pyservice._native import read_trace as read_trace
from pyservice._native import version as version
