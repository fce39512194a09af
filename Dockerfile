# syntax=docker/dockerfile:1

# `make image-digests` adds the digest of the base image, which is the same for all architectures; `make image` builds
# only with a digest. After an update of the digest, the image has the current security fixes of its base.
ARG PYTHON_IMAGE=python:3.13-slim
# `make image` adds the labels for the version, the commit and the address of the sources.

# Installs the program into a virtual environment. .dockerignore admits only the sources of the wheel, and the locks.
FROM ${PYTHON_IMAGE} AS build
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
WORKDIR /source
# Without pip, because the image below runs one program and installs none.
RUN python -m venv --without-pip /opt/load-watcher
# Every package has the version and one of the hashes in the locks (`make lock`), also the tools that build the wheel.
COPY deploy/image/requirements.lock deploy/image/build.lock deploy/image/
RUN python -m pip --python /opt/load-watcher install --require-hashes --only-binary :all: -r deploy/image/requirements.lock
# A layer of its own: a change of the packages does not reinstall the tools.
# hadolint ignore=DL3059
RUN python -m pip install --require-hashes --only-binary :all: -r deploy/image/build.lock
COPY . .
# The commit for `load-watcher --version`, because .git is not in the build context.
ARG COMMIT=""
RUN LOAD_WATCHER_COMMIT="${COMMIT}" python -m pip wheel --no-deps --no-build-isolation --wheel-dir /wheel . \
    && python -m pip --python /opt/load-watcher install --no-deps --no-index /wheel/*.whl
RUN mkdir /data

# The node agent, which runs on every node: only the packages that it imports.
FROM build AS agent-build
RUN python -m venv --without-pip /opt/agent
COPY deploy/image/agent.lock deploy/image/agent.excludes deploy/image/
RUN python -m pip --python /opt/agent install --require-hashes --only-binary :all: -r deploy/image/agent.lock
# cd, because the directory has the version of Python in its name.
# hadolint ignore=DL3003
RUN python -m pip --python /opt/agent install --no-deps --no-index /wheel/*.whl \
    && cd /opt/agent/lib/python3.*/site-packages && xargs rm -r < /source/deploy/image/agent.excludes

# docker build --target agent
FROM ${PYTHON_IMAGE} AS agent
LABEL org.opencontainers.image.title="load-watcher-agent" \
      org.opencontainers.image.description="Node agent of load-watcher: throttles and evicts pods when a Kubernetes node is overloaded" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.vendor="The load-watcher maintainers"
COPY --from=agent-build /opt/agent /opt/agent
COPY --from=build --chown=65532:65532 /data /data
USER 65532:65532
WORKDIR /data
VOLUME ["/data"]
ENV PATH=/opt/agent/bin:/usr/local/bin:/usr/bin:/bin \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
EXPOSE 2021
HEALTHCHECK --interval=30s --timeout=5s --start-period=10s \
    CMD ["/opt/agent/bin/python", "-m", "load_watcher.healthcheck"]
ENTRYPOINT ["/opt/agent/bin/load-watcher"]
CMD ["agent"]

# This stage only copies files: no layer runs a command, and running the image needs no shell. The base image is the
# same as above because the virtual environment links to its Python, and because the Python of distroless is too old.
FROM ${PYTHON_IMAGE}
LABEL org.opencontainers.image.title="load-watcher" \
      org.opencontainers.image.description="Real-load-aware Kubernetes scheduling: node load windows, scoring plug-ins and a node agent" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.vendor="The load-watcher maintainers"
COPY --from=build /opt/load-watcher /opt/load-watcher
# A named volume inherits this owner.
COPY --from=build --chown=65532:65532 /data /data

# Numeric, so that Kubernetes can verify runAsNonRoot without this image's /etc/passwd.
USER 65532:65532
# The only writable directory; the rest of the file system may be read-only. The default path of the database is
# relative to the working directory. It is not set by an environment variable, which would override a mounted
# load-watcher.toml.
WORKDIR /data
VOLUME ["/data"]
ENV PATH=/opt/load-watcher/bin:/usr/local/bin:/usr/bin:/bin \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    LOAD_WATCHER_DEFAULT_SERVER_HOST=::
EXPOSE 2020
# Asks the server of the command that the container runs (serve, extender, agent, qrm), at the address of its options
# and settings.
HEALTHCHECK --interval=30s --timeout=5s --start-period=10s \
    CMD ["/opt/load-watcher/bin/python", "-m", "load_watcher.healthcheck"]
ENTRYPOINT ["/opt/load-watcher/bin/load-watcher"]
CMD ["serve"]
