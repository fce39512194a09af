"""Generated code of the .proto files in this directory. To generate it again:

    pip install grpcio-tools==1.76.0 && cd <the checkout>
    python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. --grpc_python_out=. agent/qrm/grpc/protos/*.proto

Code of this version works with protobuf 6.31 and later, including 7, and with grpcio 1.76 and later.
"""
