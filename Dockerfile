# Tandem's image, for CPUs and for CUDA.
#
#   docker build --build-arg ACCELERATOR=cpu --build-arg TORCH_INDEX=URL -t tandem:0.1.0-cpu .
#   docker build --build-arg ACCELERATOR=cuda -t tandem:0.1.0-cuda .
#
# EXTRAS names optional parts of tandem-serve, as nixl.
#
# torch's wheels carry the CUDA libraries that they need, so both variants have one base; the node
# brings the driver. TORCH_INDEX names the index of torch's wheels, where the usual one has not the
# variant that is wanted: the build ends if the torch that came is the other one.

ARG PYTHON=3.11.11

FROM python:${PYTHON}-slim-bookworm AS build
ARG ACCELERATOR=cpu
ARG TORCH_INDEX=
ARG EXTRAS=
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
RUN python -m venv /opt/tandem
WORKDIR /src
COPY constraints.txt ./
# torch first: it is most of the image, and changes least.
RUN /opt/tandem/bin/pip install ${TORCH_INDEX:+--index-url ${TORCH_INDEX}} \
        "$(sed -n 's/^torch==/torch==/p' constraints.txt)" \
    && /opt/tandem/bin/python -c "import sys, torch; \
found = 'cuda' if torch.version.cuda else 'cpu'; \
sys.exit(found != '${ACCELERATOR}' and f'torch is for {found}, not ${ACCELERATOR}: give TORCH_INDEX')"
COPY pyproject.toml README.md LICENSE ./
COPY bench bench
COPY cluster cluster
COPY decode_pool decode_pool
COPY engine engine
COPY kv_transfer kv_transfer
COPY models models
COPY prefill_pool prefill_pool
COPY protos protos
COPY tandem_client tandem_client
RUN /opt/tandem/bin/pip install -c constraints.txt ./tandem_client ".${EXTRAS:+[${EXTRAS}]}"

FROM python:${PYTHON}-slim-bookworm AS run
ARG ACCELERATOR=cpu
# g++: the C++ operations of a CPU, and the launchers that Triton makes, are compiled where they
# run. wget: KubeRay's own probes.
RUN apt-get update \
    && apt-get install -y --no-install-recommends g++ wget \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --uid 1000 --create-home tandem \
    && install -d -o tandem -g tandem /var/cache/tandem /var/run/tandem \
    && echo 'PATH=/opt/tandem/bin:$PATH' > /etc/profile.d/tandem.sh
COPY --from=build /opt/tandem /opt/tandem
COPY LICENSE /usr/share/doc/tandem/LICENSE
# KubeRay starts Ray in a login shell, which takes its PATH from /etc/profile.d.
ENV PATH=/opt/tandem/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    TANDEM_ACCELERATOR=${ACCELERATOR}
USER 1000:1000
WORKDIR /home/tandem
EXPOSE 8000 50051
CMD ["tandem", "serve", "--host", "0.0.0.0"]
