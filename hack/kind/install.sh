#!/usr/bin/env bash
# shellcheck source=hack/kind/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
usage "usage: install.sh [OPTION OF HELM]...
Installs the chart, or brings it up to date, and waits until all of it works: programs run, devices are published, legacy pods of
the namespace default are converted. Needs kubectl and helm.
Environment: KUBECONFIG VALUES=$VALUES NAMESPACE=$NAMESPACE RELEASE=$RELEASE TIMEOUT=$TIMEOUT" "$@"

need "$KUBECTL" "$HELM"

published() {
  local slices
  slices="$(kubectl get resourceslices -o name)" && [[ -n "$slices" ]] || {
    echo "no ResourceSlice is there"
    return 1
  }
}

# A legacy pod, as the API server would have it.
converted() {
  kubectl create --dry-run=server -o jsonpath='{.spec.resourceClaims[*].name}' -f - <<'POD' | grep -q .
{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "dry-run", "namespace": "default"},
 "spec": {"containers": [{"name": "main", "image": "none", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]}}
POD
}

helm upgrade --install "$RELEASE" "$ROOT/charts/hami-dra" --namespace "$NAMESPACE" --create-namespace --values "$VALUES" "$@"
kubectl label namespace default hami.io/webhook=enabled --overwrite
for deployment in $(kubectl -n "$NAMESPACE" get deployments -l app.kubernetes.io/part-of=hami-dra -o name); do
  kubectl -n "$NAMESPACE" rollout status "$deployment" --timeout "${TIMEOUT}s"
done
for daemonset in $(kubectl -n "$NAMESPACE" get daemonsets -l app.kubernetes.io/part-of=hami-dra -o name); do
  kubectl -n "$NAMESPACE" rollout status "$daemonset" --timeout "${TIMEOUT}s"
done
wait_for "published devices" published
wait_for "the conversion of legacy pods" converted
say "next: hack/kind/patterns.sh"
