from pyservice.pb.buf.validate import validate_pb2 as _validate_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ReportUsageRequest(_message.Message):
    __slots__ = ("node", "series", "runs")
    NODE_FIELD_NUMBER: _ClassVar[int]
    SERIES_FIELD_NUMBER: _ClassVar[int]
    RUNS_FIELD_NUMBER: _ClassVar[int]
    node: str
    series: str
    runs: _containers.RepeatedCompositeFieldContainer[RunUsage]
    def __init__(self, node: _Optional[str] = ..., series: _Optional[str] = ..., runs: _Optional[_Iterable[_Union[RunUsage, _Mapping]]] = ...) -> None: ...

class RunUsage(_message.Message):
    __slots__ = ("run_id", "traffic", "cpu_time_us", "memory_bytes", "sockets")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    TRAFFIC_FIELD_NUMBER: _ClassVar[int]
    CPU_TIME_US_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    SOCKETS_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    traffic: PlayerTraffic
    cpu_time_us: int
    memory_bytes: int
    sockets: OpenSockets
    def __init__(self, run_id: _Optional[str] = ..., traffic: _Optional[_Union[PlayerTraffic, _Mapping]] = ..., cpu_time_us: _Optional[int] = ..., memory_bytes: _Optional[int] = ..., sockets: _Optional[_Union[OpenSockets, _Mapping]] = ...) -> None: ...

class OpenSockets(_message.Message):
    __slots__ = ("sockets",)
    SOCKETS_FIELD_NUMBER: _ClassVar[int]
    sockets: _containers.RepeatedCompositeFieldContainer[OpenSocket]
    def __init__(self, sockets: _Optional[_Iterable[_Union[OpenSocket, _Mapping]]] = ...) -> None: ...

class OpenSocket(_message.Message):
    __slots__ = ("is_udp", "address", "port")
    IS_UDP_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    is_udp: bool
    address: bytes
    port: int
    def __init__(self, is_udp: _Optional[bool] = ..., address: _Optional[bytes] = ..., port: _Optional[int] = ...) -> None: ...

class PlayerTraffic(_message.Message):
    __slots__ = ("received_bytes", "sent_bytes", "received_packets", "sent_packets")
    RECEIVED_BYTES_FIELD_NUMBER: _ClassVar[int]
    SENT_BYTES_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_PACKETS_FIELD_NUMBER: _ClassVar[int]
    SENT_PACKETS_FIELD_NUMBER: _ClassVar[int]
    received_bytes: int
    sent_bytes: int
    received_packets: int
    sent_packets: int
    def __init__(self, received_bytes: _Optional[int] = ..., sent_bytes: _Optional[int] = ..., received_packets: _Optional[int] = ..., sent_packets: _Optional[int] = ...) -> None: ...

class ReportUsageResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
