# syntax=docker/dockerfile:1

# Installs the program into a virtual environment. .dockerignore admits only the sources of the wheel.
FROM python:3.13-slim AS build
WORKDIR /source
# Without pip, because the image below runs one program and installs none.
RUN python -m venv --without-pip /opt/load-watcher
COPY . .
RUN python -m pip --python /opt/load-watcher install --no-cache-dir --disable-pip-version-check --root-user-action=ignore '.[influxdb,postgres,qrm]'
RUN mkdir /data

# This stage only copies files: no layer runs a command, and running the image needs no shell. The base image is the
# same as above because the virtual environment links to its Python, and because the Python of distroless is too old.
FROM python:3.13-slim
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
    LOAD_WATCHER_SERVER_HOST=0.0.0.0
EXPOSE 2020
HEALTHCHECK --interval=30s --timeout=5s --start-period=10s \
    CMD ["/opt/load-watcher/bin/python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:2020/healthz', timeout=4)"]
ENTRYPOINT ["/opt/load-watcher/bin/load-watcher"]
CMD ["serve"]
