# One image for all programs: `hami-dra controller`, `webhook`, `driver`, `slices`, `uninstall`. hack/image/build.sh builds it.
#
# The same commit gives the same image: dependencies come from uv.lock and hack/image/build-constraints.txt, both with hashes; files
# carry the time of the commit; bytecode is validated by its location only. What remains is the base image: a tag here, so that
# a manual build just works and gets Debian's fixes. A release names it by digest (build.sh --release requires it).
ARG PYTHON_IMAGE=docker.io/library/python:3.13-slim-trixie

FROM ${PYTHON_IMAGE} AS build
ARG UV_VERSION=0.13.8
ARG SOURCE_DATE_EPOCH=0
ENV UV_PROJECT_ENVIRONMENT=/opt/hami-dra \
    UV_LINK_MODE=copy \
    UV_NO_CACHE=1 \
    UV_SYSTEM_CERTS=1 \
    UV_PYTHON_DOWNLOADS=never \
    UV_PYTHON=/usr/local/bin/python3
RUN pip install --no-cache-dir --disable-pip-version-check "uv==${UV_VERSION}"
WORKDIR /src
# dependencies first: they change less often than the code
COPY pyproject.toml uv.lock ./
RUN uv sync --frozen --no-dev --extra controller --extra dashboard --extra driver --no-install-project
COPY README.md LICENSE ./
COPY hack/image/build-constraints.txt hack/image/
COPY hami_dra hami_dra
COPY controller controller
COPY manifests manifests
COPY deviceclasses deviceclasses
COPY examples examples
RUN uv build --wheel --build-constraints hack/image/build-constraints.txt --require-hashes --out-dir /wheel \
 && pip --python /opt/hami-dra/bin/python install --quiet --no-deps --no-index --no-compile /wheel/*.whl \
 && /opt/hami-dra/bin/python -m compileall -qf --invalidation-mode unchecked-hash /opt/hami-dra/lib \
 && /opt/hami-dra/bin/python -Bc 'import aiohttp, grpc, numpy' \
 && find /opt/hami-dra -exec touch --no-dereference --date "@${SOURCE_DATE_EPOCH}" {} +

FROM ${PYTHON_IMAGE}
COPY --from=build /opt/hami-dra /opt/hami-dra
ENV PATH=/opt/hami-dra/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1
# Nothing in here needs root, except the node driver, for sockets and files in folders of the node that belong to root: its DaemonSet
# sets runAsUser: 0.
USER 65532:65532
ENTRYPOINT ["hami-dra"]
CMD ["--help"]
