# agent2rl on Debian, with the repository, its environment set up, and bubblewrap.
#
#   make image            agent2rl:cpu, about 2.7 GB
#   make image CUDA=1     agent2rl:cuda, with torch's CUDA build; GPUs need nvidia-container-toolkit on the host
#
# docs/where-to-run.md says how to start it, and which sandbox works in it.
ARG BASE=docker.io/library/debian:bookworm-slim
FROM ${BASE}

RUN apt-get update \
 && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends \
      bubblewrap ca-certificates curl git make python3 python3-venv \
 && rm -rf /var/lib/apt/lists/* \
 && useradd --create-home --uid 1000 agent2rl \
 && install -d -o agent2rl -g agent2rl /home/agent2rl/agent2rl

USER agent2rl
WORKDIR /home/agent2rl/agent2rl

# What changes least comes first: a new commit copies only the last layers.
ARG TORCH=torch==2.13.0
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
RUN python3 -m venv .venv \
 && .venv/bin/python -m pip install --no-cache-dir -q ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} "$TORCH"
COPY --chown=agent2rl requirements.lock ./
RUN .venv/bin/python -m pip install --no-cache-dir -q -r requirements.lock
COPY --chown=agent2rl . .
RUN PIP_NO_CACHE_DIR=1 make .venv/.ready

ENV PATH=/home/agent2rl/agent2rl/.venv/bin:$PATH
CMD ["agent2rl", "check"]
