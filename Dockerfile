# The image of the trainer and the gateway, on the CPU. Which of the two a container is, its command says.
FROM python:3.11-slim

# "examples" holds what examples/flights imports; add here what the experiments of your team import.
ARG EXTRAS=train,serve,postgres,examples

ENV PYTHONUNBUFFERED=1 \
    PIP_NO_CACHE_DIR=1 \
    PIP_DISABLE_PIP_VERSION_CHECK=1 \
    TF_CPP_MIN_LOG_LEVEL=2 \
    APPLIANCE_HOME=/var/lib/appliance

# The folders are made here so that new volumes mounted on them belong to the user.
RUN useradd --create-home --uid 1000 appliance \
    && install --directory --owner appliance --group appliance \
        /var/lib/appliance /var/lib/appliance/models /var/lib/appliance/jobs

WORKDIR /opt/appliance
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY appliance ./appliance
COPY registry ./registry
COPY serving ./serving
RUN pip install --constraint constraints.txt ".[${EXTRAS}]"

USER appliance
WORKDIR /var/lib/appliance
EXPOSE 8500 8501
CMD ["appliance", "--help"]
