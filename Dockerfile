# The image of the trainer and the gateway on the CPU; Dockerfile.gpu is the one with CUDA. Both have the same user,
# folders and entry point, so that one can take the other's place on the same volumes.
# Built in the larger image, as that one has a C compiler.
FROM python:3.11 AS build
WORKDIR /src
COPY pyproject.toml README.md LICENSE collector_pause.py keras_on_demand.py ./
COPY appliance/ appliance/
COPY registry/ registry/
COPY serving/ serving/
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM python:3.11-slim

# "examples" holds what examples/flights imports; give here what the experiments of your team import.
ARG EXTRAS=train,sklearn,serve,postgres,examples

ENV PIP_NO_CACHE_DIR=1 \
    PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PYTHONUNBUFFERED=1 \
    TF_CPP_MIN_LOG_LEVEL=2

WORKDIR /opt/appliance
COPY constraints.txt ./
COPY --from=build /wheels/ wheels/
RUN pip install --constraint constraints.txt "$(echo wheels/*.whl)[${EXTRAS}]"

# Jobs run the code of whoever may submit them, so not as root. A new volume takes over the owner of its folder.
RUN useradd --uid 10001 --create-home appliance \
    && install --directory --owner appliance --group appliance \
        /var/lib/appliance /var/lib/appliance/models /var/lib/appliance/jobs
ENV APPLIANCE_HOME=/var/lib/appliance
VOLUME /var/lib/appliance
USER appliance
WORKDIR /home/appliance

EXPOSE 8500 8501
ENTRYPOINT ["appliance"]
CMD ["up"]
