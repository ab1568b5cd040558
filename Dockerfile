# The image of every program of Node Mounts. It is also the recipe of `make image`,
# which reads the last stage and follows it without Docker: tools/image understands
# the instructions used there, and refuses others.
#
# For both architectures:
#   docker buildx build --platform linux/amd64,linux/arm64 -t REGISTRY/node-mounts:TAG --push .

ARG GO_VERSION=1.26

FROM --platform=$BUILDPLATFORM golang:${GO_VERSION}-bookworm AS build
WORKDIR /src
COPY go.mod go.sum ./
COPY runners/s3/go.mod runners/s3/go.sum runners/s3/
RUN go mod download && go -C runners/s3 mod download
COPY . .
ARG TARGETARCH
RUN --mount=type=cache,target=/root/.cache/go-build \
    make binaries ARCH="$TARGETARCH" && mv "bin/linux-$TARGETARCH" /out

# Mountpoint for Amazon S3, where a version is asked for: /out is empty otherwise.
# Without the right checksum there is no image. It needs libfuse2, and nothing else
# of the image does.
FROM debian:bookworm-slim AS mount-s3
ARG TARGETARCH
ARG MOUNT_S3_VERSION
ARG MOUNT_S3_SHA256_AMD64
ARG MOUNT_S3_SHA256_ARM64
RUN --mount=type=bind,source=image,target=/tmp/image /tmp/image/mount-s3 /out

FROM debian:bookworm-slim
RUN --mount=type=bind,source=image,target=/tmp/image /tmp/image/install
COPY --from=mount-s3 /out/ /
COPY --from=build --chmod=0755 /out/ /usr/local/bin/
ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
ARG VERSION=unknown
ARG REVISION=unknown
LABEL org.opencontainers.image.title="Node Mounts"
LABEL org.opencontainers.image.description="Puts folders into Kubernetes Pods that are already running, and takes them away again"
LABEL org.opencontainers.image.source=https://github.com/datalayer/node-mounts
LABEL org.opencontainers.image.licenses=Apache-2.0
LABEL org.opencontainers.image.version=${VERSION}
LABEL org.opencontainers.image.revision=${REVISION}
ENTRYPOINT ["/usr/local/bin/node-mounts-agent"]
