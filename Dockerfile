# One image for every Zonewise program: controller, webhook, proxy (which runs nft), csi, command line. `zonewise install` prints how to run it.
#
# The base is Debian 12 with Python 3.11 on purpose: `zonewise csi` on Ceph loads Debian's own modules (python3-rados, python3-rbd), and those of Debian 12 are
# built for this Python. `docker build --target ceph .` has them, and the clients that bring volumes to nodes; what is built by default has none.
FROM python:3.11-slim-bookworm AS build
WORKDIR /build
RUN python -m venv /opt/zonewise
COPY requirements/runtime.txt .
RUN /opt/zonewise/bin/pip install --no-cache-dir --require-hashes -r runtime.txt
COPY pyproject.toml README.md LICENSE CHANGELOG.md ./
COPY src src
RUN /opt/zonewise/bin/pip install --no-cache-dir --no-deps --no-build-isolation .

FROM python:3.11-slim-bookworm AS plain
RUN apt-get -qq update && apt-get -qq install --yes --no-install-recommends nftables e2fsprogs xfsprogs && rm -rf /var/lib/apt/lists/*
COPY --from=build /opt/zonewise /opt/zonewise
ENV PATH=/opt/zonewise/bin:$PATH PYTHONDONTWRITEBYTECODE=1
USER 65532:65532
ENTRYPOINT ["zonewise"]

FROM plain AS ceph
USER 0
RUN apt-get -qq update && apt-get -qq install --yes --no-install-recommends python3-rados python3-rbd ceph-common rbd-fuse ceph-fuse rbd-nbd \
    && rm -rf /var/lib/apt/lists/* \
    && ln -s /usr/lib/python3/dist-packages/rados.cpython-311-*.so /usr/lib/python3/dist-packages/rbd.cpython-311-*.so \
        /opt/zonewise/lib/python3.11/site-packages/ \
    && python -c 'import rados, rbd'
USER 65532:65532

FROM plain
