#!/usr/bin/env bash
# Builds the container image.
set -euo pipefail
ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)"
PYTHON_IMAGE="${PYTHON_IMAGE:-}"
DEBIAN_MIRROR="${DEBIAN_MIRROR:-}"

if [[ $# -eq 0 || "$1" == -h || "$1" == --help ]]; then
  cat <<'USAGE'
usage: build.sh [--release] [--buildah ARCHIVE] NAME[:TAG] [OPTION OF THE BUILDER]...
Builds the image with docker buildx, the same from the same commit: files carry the time of the commit. Needs docker with buildx.
The image is loaded into docker, unless an option says where else it goes, for example for two platforms:
  build.sh NAME:TAG --platform linux/amd64,linux/arm64 --push
--release   for what others will run: the base image must be given by digest, and the working tree be clean
--buildah ARCHIVE
            without Docker and without a registry: needs buildah and mmdebstrap. The base image is made of Debian's packages, and the
            image is also written to an OCI archive. 'buildah push NAME:TAG' publishes it.
Environment:
  PYTHON_IMAGE  the base image; for a release with its digest: docker.io/library/python:3.13-slim-trixie@sha256:...
                (docker buildx imagetools inspect python:3.13-slim-trixie prints it)
  DEBIAN_MIRROR where --buildah gets Debian's packages, for the same base later: https://snapshot.debian.org/archive/debian/DATE
USAGE
  [[ $# -gt 0 ]] || exit 2
  exit 0
fi
release="" archive=""
if [[ "$1" == --release ]]; then
  release=yes
  shift
fi
if [[ "${1:-}" == --buildah ]]; then
  archive="${2:?a file for the OCI archive}"
  shift 2
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
SOURCE_DATE_EPOCH="$(git -C "$ROOT" log -1 --format=%ct)"
export SOURCE_DATE_EPOCH

need() {
  command -v "$1" >/dev/null || {
    echo "build.sh: $1 is not on the PATH" >&2
    exit 1
  }
}

# What the Dockerfile expects of python:3.13-slim-trixie: Debian 13 with a shell, certificates, C++'s library, pip, and Python in its place.
make_base() {
  local scratch container
  need mmdebstrap
  scratch="$(mktemp -d)"
  # shellcheck disable=SC2016  # $1 is for the hooks
  mmdebstrap --quiet --variant=essential --include=python3,python3-pip,ca-certificates,libstdc++6 \
    --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
    --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-include=/usr/share/doc/*/copyright' \
    --customize-hook='rm "$1"/usr/lib/python3.13/EXTERNALLY-MANAGED' \
    --customize-hook='ln -s ../../bin/python3 "$1"/usr/local/bin/python3' \
    trixie "$scratch/base.tar" ${DEBIAN_MIRROR:+"$DEBIAN_MIRROR"}
  container="$(buildah from scratch)"
  buildah add --quiet "$container" "$scratch/base.tar" / >&2
  rm -r "$scratch"
  buildah config --env PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin "$container" >&2
  buildah commit --quiet --timestamp "$SOURCE_DATE_EPOCH" --rm "$container" localhost/hami-dra-python:3.13-trixie
}

if [[ -n "$archive" ]]; then
  need buildah
  command=(buildah build --isolation chroot --timestamp "$SOURCE_DATE_EPOCH")
  [[ -n "$PYTHON_IMAGE" ]] || PYTHON_IMAGE="$(make_base)"
else
  need docker
  command=(docker buildx build)
  # several platforms cannot be loaded, only pushed
  load=--load
  for option in "$@"; do
    [[ "$option" != --push && "$option" != --output* ]] || load=
  done
  command+=(${load:+"$load"})
fi
"${command[@]}" --tag "$name" \
  ${PYTHON_IMAGE:+--build-arg "PYTHON_IMAGE=$PYTHON_IMAGE"} \
  --build-arg "SOURCE_DATE_EPOCH=$SOURCE_DATE_EPOCH" \
  --label "org.opencontainers.image.revision=$(git -C "$ROOT" rev-parse HEAD)" \
  --label org.opencontainers.image.licenses=Apache-2.0 \
  "$@" "$ROOT"
if [[ -n "$archive" ]]; then
  rm -f "$archive"
  buildah push --quiet "$name" "oci-archive:$archive:$name"
fi
