"""kubelet's gRPC interfaces: copies of the .proto files of k8s.io/kubelet 1.37.1 (pkg/apis/pluginregistration, dra, dra-health; Apache-2.0,
The Kubernetes Authors), and what grpcio-tools makes of them (`make generate`).
"""
