"""The generated code of the pod-resources API, wherever the packages have it."""

from agent.qrm.kubelet.protos import qrm_podresources_v1_pb2 as podresources_pb
from agent.qrm.kubelet.protos import qrm_podresources_v1_pb2_grpc as podresources_grpc

__all__ = ["podresources_grpc", "podresources_pb"]
