"""The OpenAPI 3.1 document of the service, made of the protos (decisions 1.11).

`document` gives its bytes, `gaps` what the protos owe to it. Operations, messages, rules, failures, credentials and
examples have a module each; serving it is the HTTP door's.
"""

from pyservice.openapi.paths import document, gaps

__all__ = ["document", "gaps"]
