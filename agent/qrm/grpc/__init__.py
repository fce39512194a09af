"""gRPC over unix sockets, as in the kubelet: resource plug-ins, their registration, and the pod-resources API.

`plugin_api` defines a plug-in's client without gRPC, `plugin_client` implements it, `grpc_server` serves the built-in
plug-ins, and `messages` converts between protobuf messages and values. `protos` has the generated code.
"""
