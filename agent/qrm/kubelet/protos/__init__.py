"""What protoc made of the .proto files here. To make it anew:

    pip install grpcio-tools==1.76.0 && cd <the checkout>
    python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. --grpc_python_out=. agent/qrm/protos/*.proto

That version's code runs with protobuf 6.31 and newer, 7 included, and with grpcio 1.76 and newer.
"""
