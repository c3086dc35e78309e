#!/usr/bin/env bash
# shellcheck source=hack/kind/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
usage "usage: load.sh
Builds the container image and loads it into the nodes. Needs docker and kind.
Environment: CLUSTER=$CLUSTER IMAGE=$IMAGE" "$@"

need docker kind
"$ROOT/hack/image/build.sh" "$IMAGE"
kind load docker-image --name "$CLUSTER" "$IMAGE"
say "next: hack/kind/install.sh"
