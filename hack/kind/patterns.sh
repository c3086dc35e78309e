#!/usr/bin/env bash
# shellcheck source=hack/kind/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
usage "usage: patterns.sh
Runs the four patterns of examples/, one after the other, with a small image in place of the model server, shows which pod is on which
card and checks that it is as the pattern says. Needs kubectl.
Environment: KUBECONFIG PAUSE_IMAGE TIMEOUT=$TIMEOUT" "$@"

need "$KUBECTL"
PAUSE_IMAGE="${PAUSE_IMAGE:-registry.k8s.io/pause:3.10}"

# The manifest as it is, but for what runs: the image of the example has 10 GB.
light() { sed -E "s#^( *)image: .*#\\1image: $PAUSE_IMAGE#; /^ *args: \\[/d" "$1"; }

# POD NODE CARD of each claim that is in use.
placements() {
  # shellcheck disable=SC2016 # the template's variables, not the shell's
  kubectl get resourceclaims -o go-template='{{range $claim := .items}}{{range .status.allocation.devices.results}}{{$device := .device}}{{$node := .pool}}{{range $claim.status.reservedFor}}{{printf "%s %s %s\n" .name $node $device}}{{end}}{{end}}{{end}}' | sort
}

gone() {
  local left
  left="$(kubectl get pods,resourceclaims -o name)" && [[ -z "$left" ]] || {
    echo "still there: $left"
    return 1
  }
}

# pattern NAME NODES CARDS: four pods on so many nodes and so many cards.
pattern() {
  local name="$1" nodes="$2" cards="$3" found
  local file="$ROOT/examples/$name.yaml"
  say "$name: four pods on $nodes node(s) and $cards cards"
  light "$file" | kubectl apply -f -
  kubectl rollout status "deployment/demo-$name" --timeout "${TIMEOUT}s"
  found="$(placements)"
  { echo "POD NODE CARD" && echo "$found"; } | awk '{printf "%-50s %-24s %s\n", $1, $2, $3}'
  awk -v nodes="$nodes" -v cards="$cards" '
    { pods[$1]; on[$2]; held[$2 " " $3] }
    END {
      if (length(pods) != 4 || length(on) != nodes || length(held) != cards) {
        printf "%d pods on %d nodes and %d cards\n", length(pods), length(on), length(held)
        exit 1
      }
    }' <<<"$found" || fail "$name: four pods should be on $nodes node(s) and $cards cards"
  kubectl delete -f "$file" --wait
  wait_for "an empty namespace" gone
}

pattern a-node-binpack-gpu-binpack 1 2
pattern b-node-spread-gpu-binpack 2 2
pattern c-node-binpack-gpu-spread 1 4
pattern d-node-spread-gpu-spread 2 4
say "all four patterns are as they should be; hack/kind/down.sh takes everything down"
