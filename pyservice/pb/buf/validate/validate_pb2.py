"""The validation rules as descriptors, where generated code imports them from.

The file ``buf/validate/validate.proto`` is not ours: the protovalidate package brings its
descriptor, which is registered here.
"""

from __future__ import annotations

import protovalidate
from google.protobuf import (
    descriptor_pb2,
    descriptor_pool,
    duration_pb2,
    field_mask_pb2,
    timestamp_pb2,
)
from google.protobuf.descriptor import FieldDescriptor, FileDescriptor

# The descriptor imports these; they have to be in the pool before it.
REQUIRED = (descriptor_pb2, duration_pb2, field_mask_pb2, timestamp_pb2)

SERIALIZED = protovalidate.ViolationPb.desc().file.proto.to_binary()
DESCRIPTOR: FileDescriptor = descriptor_pool.Default().AddSerializedFile(SERIALIZED)
"""``buf/validate/validate.proto``."""

field: FieldDescriptor = DESCRIPTOR.extensions_by_name["field"]
"""Extension of field options with the rules of a field."""

message: FieldDescriptor = DESCRIPTOR.extensions_by_name["message"]
"""Extension of message options with the rules of a message as a whole."""

oneof: FieldDescriptor = DESCRIPTOR.extensions_by_name["oneof"]
"""Extension of oneof options."""
