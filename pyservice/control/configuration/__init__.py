"""The configuration of a version (contract, "Cloud configuration"; decisions 4): what is refused, what
the data plane is fed of it, and how it is kept. Pure: who asks brings what the records say.

What a mode resolves to (region over mode over matchmaker level) is in `dataplane.configuration`.
"""

from pyservice.control.configuration.context import Completeness, Context
from pyservice.control.configuration.feed import to_feed
from pyservice.control.configuration.problems import image_ids, problems_of, site_ids
from pyservice.control.configuration.runtime import (
    findings_in_arguments,
    findings_in_environment,
)
from pyservice.control.configuration.storage import decode, encode, json_of, version_answer

__all__ = [
    "Completeness",
    "Context",
    "decode",
    "encode",
    "findings_in_arguments",
    "findings_in_environment",
    "image_ids",
    "json_of",
    "problems_of",
    "site_ids",
    "to_feed",
    "version_answer",
]
