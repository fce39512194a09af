"""Generated code of the .proto files in this directory. `qrm_nri_v1alpha1.proto` is pkg/api/api.proto of
github.com/containerd/nri v0.12.5 without changes, under the licence in its header. To generate the code again:

    pip install grpcio-tools==1.76.0 && cd <the checkout>
    python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. agent/qrm/runtime/nri/protos/*.proto
    sed -i '/^ *None: /d' agent/qrm/runtime/nri/protos/*.pyi    # Field.None is not valid in Python

Code of this version works with protobuf 6.31 and later, including 7.
"""
