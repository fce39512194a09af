# syntax=docker/dockerfile:1

# The whole program as a virtual environment. .dockerignore lets in only what the wheel is made of.
FROM python:3.13-slim AS build
WORKDIR /source
# Without pip inside: the image below is to run one program, not to install others.
RUN python -m venv --without-pip /opt/load-watcher
COPY . .
RUN python -m pip --python /opt/load-watcher install --no-cache-dir --disable-pip-version-check --root-user-action=ignore '.[influxdb,postgres,qrm]'
RUN mkdir /data

# Only copies from here on: no layer of this stage ran a command, and running it needs no shell. The base is the same as
# above because the environment's python is a link into it, and because distroless has no Python that is new enough.
FROM python:3.13-slim
COPY --from=build /opt/load-watcher /opt/load-watcher
# A named volume takes its owner from here.
COPY --from=build --chown=65532:65532 /data /data

# A number, so that Kubernetes can verify runAsNonRoot without knowing this image's /etc/passwd.
USER 65532:65532
# The one place that is written to: the rest of the file system may be read-only. The database is there by default, being
# relative to the working directory; a variable for it would count before what a mounted load-watcher.toml says.
WORKDIR /data
VOLUME ["/data"]
ENV PATH=/opt/load-watcher/bin:/usr/local/bin:/usr/bin:/bin \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    LOAD_WATCHER_SERVER_HOST=0.0.0.0
EXPOSE 2020
HEALTHCHECK --interval=30s --timeout=5s --start-period=10s \
    CMD ["/opt/load-watcher/bin/python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:2020/healthz', timeout=4)"]
ENTRYPOINT ["/opt/load-watcher/bin/load-watcher"]
CMD ["serve"]
