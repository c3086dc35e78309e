#!/usr/bin/env bash
# shellcheck source=hack/kind/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
usage "usage: down.sh [--keep-cluster]
Takes the chart out, which first runs 'hami-dra uninstall' in the cluster, and then deletes the cluster. Needs helm and kubectl, and
kind unless the cluster is kept.
Environment: KUBECONFIG CLUSTER=$CLUSTER NAMESPACE=$NAMESPACE RELEASE=$RELEASE TIMEOUT=$TIMEOUT" "$@"

need "$KUBECTL" "$HELM"
if helm status "$RELEASE" --namespace "$NAMESPACE" >/dev/null 2>&1; then
  helm uninstall "$RELEASE" --namespace "$NAMESPACE" --wait --timeout "${TIMEOUT}s"
  # simulated nodes, if any, have no owner now
  kubectl delete nodes,resourceslices -l hami.io/fleet --ignore-not-found
  kubectl label namespace default hami.io/webhook-
  # also deletes the controller's lease, with its mark that hami-dra was uninstalled
  kubectl delete namespace "$NAMESPACE" --wait=false
else
  say "the chart is not installed"
fi
if [[ "${1:-}" != --keep-cluster ]]; then
  need kind
  kind delete cluster --name "$CLUSTER"
fi
