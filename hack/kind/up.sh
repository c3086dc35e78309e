#!/usr/bin/env bash
# shellcheck source=hack/kind/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
usage "usage: up.sh
Makes a kind cluster with two workers. Needs docker and kind.
Environment: CLUSTER=$CLUSTER K8S=$K8S" "$@"

need docker kind
if kind get clusters 2>/dev/null | grep -qx "$CLUSTER"; then
  say "cluster $CLUSTER is there already"
else
  kind create cluster --name "$CLUSTER" --image "kindest/node:v$K8S" --config "$HERE/cluster.yaml" --wait "${TIMEOUT}s"
fi
say "next: hack/kind/load.sh"
