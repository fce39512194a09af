"""Requests and responses of ttrpc, and the status codes of gRPC that NRI uses.

Pure: no I/O, no clock.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from google.protobuf.message import DecodeError

from agent.qrm.nri.frames import MAX_DATA
from agent.qrm.nri.protos import qrm_ttrpc_pb2 as pb

PLUGIN_SERVICE = "nri.pkg.api.v1alpha1.Plugin"
RUNTIME_SERVICE = "nri.pkg.api.v1alpha1.Runtime"
MAX_MESSAGE = 4096
"""Characters of an error message that is sent to the runtime."""


class Code(IntEnum):
    """The status codes of gRPC that are used here."""

    OK = 0
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    RESOURCE_EXHAUSTED = 8
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14


class CallFailed(RuntimeError):
    """A call ended with a status other than OK. `code` may be a number that Code does not have."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True)
class CallRequest:
    """A request: `timeout` is in seconds, 0 if the caller has no timeout."""

    service: str
    method: str
    payload: bytes
    timeout: float = 0.0


def encode_request(request: CallRequest) -> bytes:
    """The data of a ttrpc message of type request."""
    message = pb.Request(
        service=request.service,
        method=request.method,
        payload=request.payload,
        timeout_nano=round(request.timeout * 1e9),
    )
    return message.SerializeToString()


def decode_request(data: bytes) -> CallRequest:
    """Parse the data of a request. Raises CallFailed with INVALID_ARGUMENT."""
    try:
        message = pb.Request.FromString(data)
    except DecodeError:
        raise CallFailed(Code.INVALID_ARGUMENT, "the request is not a ttrpc request") from None
    return CallRequest(message.service, message.method, message.payload, message.timeout_nano / 1e9)


def encode_response(payload: bytes) -> bytes:
    """The data of a ttrpc message of type response."""
    data = pb.Response(status=pb.Status(), payload=payload).SerializeToString()
    if len(data) > MAX_DATA:
        return encode_failure(CallFailed(Code.RESOURCE_EXHAUSTED, f"the response has {len(data)} bytes"))
    return data


def encode_failure(error: CallFailed) -> bytes:
    """The data of a response with an error status."""
    text = str(error)[:MAX_MESSAGE]
    return pb.Response(status=pb.Status(code=error.code, message=text)).SerializeToString()


def decode_response(data: bytes) -> bytes:
    """The payload of a response. Raises CallFailed with the status of the response, or INTERNAL."""
    try:
        message = pb.Response.FromString(data)
    except DecodeError:
        raise CallFailed(Code.INTERNAL, "the response is not a ttrpc response") from None
    if message.status.code:
        raise CallFailed(message.status.code, message.status.message)
    return message.payload
