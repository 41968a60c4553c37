"""The Python client of the appliance. Imports neither TensorFlow nor any server code.

from appliance.client import Client

client = Client()  # APPLIANCE_URL and APPLIANCE_TOKEN, or http://127.0.0.1:8501
job = client.submit("flights/model.py", model="flights", params={"steps": 1000}, promote="production")
client.watch(job)
client.predict("flights", instances=[{"carrier": "AA", "distance": 1400.0}])
"""

from appliance.client.client import Client
from appliance.client.errors import (
    ClientError,
    Conflict,
    ConnectionFailed,
    GateRefused,
    InvalidBundle,
    InvalidRequest,
    LoadFailed,
    NotFound,
    Overloaded,
    ServerFailed,
    TooLarge,
    Unauthorized,
)
from appliance.client.results import (
    Approval,
    Delivery,
    Event,
    Gate,
    GateReport,
    HistoryEvent,
    Job,
    LogLine,
    Model,
    Promotion,
    Removed,
    Retention,
    Verification,
    Version,
    Webhook,
)

__all__ = [
    "Approval",
    "Client",
    "ClientError",
    "Conflict",
    "ConnectionFailed",
    "Delivery",
    "Event",
    "Gate",
    "GateRefused",
    "GateReport",
    "HistoryEvent",
    "InvalidBundle",
    "InvalidRequest",
    "Job",
    "LoadFailed",
    "LogLine",
    "Model",
    "NotFound",
    "Overloaded",
    "Promotion",
    "Removed",
    "Retention",
    "ServerFailed",
    "TooLarge",
    "Unauthorized",
    "Verification",
    "Version",
    "Webhook",
]
