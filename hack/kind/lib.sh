# shellcheck shell=bash
# What the scripts of this folder have in common; they source it. Each setting may come from the environment.
set -euo pipefail

HERE="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
# read by the scripts, not here
# shellcheck disable=SC2034
{
  ROOT="$(cd "$HERE/../.." && pwd)"
  CLUSTER="${CLUSTER:-hami-dra}"          # name of the kind cluster
  K8S="${K8S:-1.37.1}"                    # version of Kubernetes: an image kindest/node:v$K8S must exist
  IMAGE="${IMAGE:-hami-dra:kind}"         # as values.yaml says
  VALUES="${VALUES:-$HERE/values.yaml}"   # of the chart
  NAMESPACE="${NAMESPACE:-hami-dra-system}"
  RELEASE="${RELEASE:-hami-dra}"
  TIMEOUT="${TIMEOUT:-180}"               # seconds, for each thing that is waited for
}
KUBECTL="${KUBECTL:-kubectl}"
HELM="${HELM:-helm}"

kubectl() { command "$KUBECTL" "$@"; }
helm() { command "$HELM" "$@"; }
say() { printf '==> %s\n' "$*" >&2; }
fail() { printf '%s: %s\n' "$(basename "$0")" "$*" >&2; exit 1; }

# Exits if a program is missing.
need() {
  local program
  for program in "$@"; do
    command -v "$program" >/dev/null || fail "$program is not on the PATH"
  done
}

# wait_for WHAT COMMAND...: until the command succeeds. What it prints on its last try is shown when it never does.
wait_for() {
  local what="$1" end=$((SECONDS + TIMEOUT)) said
  shift
  say "waiting for $what"
  until said="$("$@" 2>&1)"; do
    ((SECONDS < end)) || fail "not within $TIMEOUT s: $what"$'\n'"$said"
    sleep 1
  done
}

# usage TEXT "$@": prints the text and ends when --help was asked for.
usage() {
  local text="$1"
  shift
  case "${1:-}" in
    -h | --help)
      printf '%s\n' "$text"
      exit 0
      ;;
  esac
}
