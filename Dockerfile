# One image for every Zonewise program: controller, webhook, proxy (which runs nft), command line. `zonewise install` prints how to run it.
FROM python:3.11-slim AS build
WORKDIR /build
RUN python -m venv /opt/zonewise
COPY requirements/runtime.txt .
RUN /opt/zonewise/bin/pip install --no-cache-dir --require-hashes -r runtime.txt
COPY pyproject.toml README.md LICENSE CHANGELOG.md ./
COPY src src
RUN /opt/zonewise/bin/pip install --no-cache-dir --no-deps --no-build-isolation .

FROM python:3.11-slim
RUN apt-get -qq update && apt-get -qq install --yes --no-install-recommends nftables && rm -rf /var/lib/apt/lists/*
COPY --from=build /opt/zonewise /opt/zonewise
ENV PATH=/opt/zonewise/bin:$PATH PYTHONDONTWRITEBYTECODE=1
USER 65532:65532
ENTRYPOINT ["zonewise"]
