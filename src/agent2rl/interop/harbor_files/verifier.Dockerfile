FROM $image
RUN apt-get update && apt-get install -y --no-install-recommends bash bubblewrap \
    && rm -rf /var/lib/apt/lists/*
COPY requirements.txt /opt/agent2rl/requirements.txt
RUN pip install --no-cache-dir -r /opt/agent2rl/requirements.txt
RUN mkdir -p $model $workspace/output
COPY . /tests
ENV PYTHONPATH=/tests/package PYTHONUNBUFFERED=1
WORKDIR /
