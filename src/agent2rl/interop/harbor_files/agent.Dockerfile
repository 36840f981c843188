FROM $image
RUN apt-get update && apt-get install -y --no-install-recommends bash curl git procps \
    && rm -rf /var/lib/apt/lists/*
COPY requirements.txt /opt/agent2rl/requirements.txt
RUN pip install --no-cache-dir -r /opt/agent2rl/requirements.txt
COPY package /opt/agent2rl/package
ENV PYTHONPATH=/opt/agent2rl/package PYTHONUNBUFFERED=1
RUN useradd --create-home agent && mkdir -p $model
COPY --chown=agent:agent workspace $workspace
WORKDIR $workspace
USER agent
