#!/usr/bin/env bash
# Builds the container image.
set -euo pipefail
ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)"
PYTHON_IMAGE="${PYTHON_IMAGE:-}"

if [[ $# -eq 0 || "$1" == -h || "$1" == --help ]]; then
  cat <<'USAGE'
usage: build.sh [--release] NAME[:TAG] [OPTION OF DOCKER BUILDX BUILD]...
Builds the image with docker buildx, the same from the same commit: files carry the time of the commit. Needs docker with buildx.
The image is loaded into docker, unless an option says where else it goes, for example for two platforms:
  build.sh NAME:TAG --platform linux/amd64,linux/arm64 --push
--release   for what others will run: the base image must be given by digest, and the working tree be clean
Environment:
  PYTHON_IMAGE  the base image; for a release with its digest: docker.io/library/python:3.13-slim-trixie@sha256:...
                (docker buildx imagetools inspect python:3.13-slim-trixie prints it)
USAGE
  [[ $# -gt 0 ]] || exit 2
  exit 0
fi
release=
if [[ "$1" == --release ]]; then
  release=yes
  shift
fi
name="${1:?a name for the image}"
shift
if [[ -n "$release" ]]; then
  [[ "$PYTHON_IMAGE" == *@sha256:* ]] || {
    echo "build.sh: a release needs the base image by digest: PYTHON_IMAGE=...@sha256:... (see --help)" >&2
    exit 1
  }
  [[ -z "$(git -C "$ROOT" status --porcelain)" ]] || {
    echo "build.sh: a release is made from a clean working tree" >&2
    exit 1
  }
fi
command -v docker >/dev/null || {
  echo "build.sh: docker is not on the PATH" >&2
  exit 1
}
SOURCE_DATE_EPOCH="$(git -C "$ROOT" log -1 --format=%ct)"
export SOURCE_DATE_EPOCH
# several platforms cannot be loaded, only pushed
target=--load
for option in "$@"; do
  [[ "$option" != --push && "$option" != --output* ]] || target=
done
docker buildx build "$ROOT" --tag "$name" ${target:+"$target"} \
  ${PYTHON_IMAGE:+--build-arg "PYTHON_IMAGE=$PYTHON_IMAGE"} \
  --build-arg "SOURCE_DATE_EPOCH=$SOURCE_DATE_EPOCH" \
  --label "org.opencontainers.image.revision=$(git -C "$ROOT" rev-parse HEAD)" \
  --label org.opencontainers.image.licenses=Apache-2.0 \
  "$@"
