"""The page at /api/v1/docs: what the OpenAPI description says, as one page that needs nothing from elsewhere.

The usual pages for OpenAPI fetch scripts from other people's servers, which an appliance behind a firewall
cannot reach, and which would run with the rights of whoever looks at it.
"""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping
from typing import Any

from fastapi import FastAPI
from starlette.responses import HTMLResponse

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
code { font-size: 13px; } h2 { border-bottom: 1px solid #8886; } h3 code { font-size: 15px; }
table { border-collapse: collapse; }
td { text-align: left; vertical-align: top; padding: .1rem 1rem .1rem 0; }
"""
HEADERS = {"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'"}


def add_docs_page(app: FastAPI, path: str) -> None:
    """Serve the page at `path`."""

    @app.get(path, include_in_schema=False)
    def docs() -> HTMLResponse:
        return HTMLResponse(render(app.openapi()), headers=HEADERS)


def render(description: Mapping[str, Any]) -> str:
    """Return an OpenAPI description as HTML."""
    title = html.escape(f"{description['info']['title']} {description['info']['version']}")
    body = "".join([*_operations(description), *_schemas(description)])
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title><style>{STYLE}</style>'
        f"<h1>{title}</h1><p>{html.escape(description['info'].get('description', ''))}</p>{body}</html>"
    )


def _operations(description: Mapping[str, Any]) -> Iterator[str]:
    for tag in description["tags"]:
        yield f'<h2 id="{tag["name"]}">{tag["name"]}</h2><p>{html.escape(tag["description"])}</p>'
        for path, operations in description["paths"].items():
            for method, operation in operations.items():
                if tag["name"] in operation.get("tags", ()):
                    yield _operation(method, path, operation)


def _operation(method: str, path: str, operation: Mapping[str, Any]) -> str:
    heading = f"<h3><code>{method.upper()} {html.escape(path)}</code></h3>"
    rows = [
        (entry["name"], entry["in"], _type(entry["schema"]), entry.get("description", ""))
        for entry in operation.get("parameters", ())
    ]
    for kind in operation.get("requestBody", {}).get("content", {}).values():
        rows.append(("", "body", _type(kind["schema"]), ""))
    answers = "; ".join(
        f"{status}: {_answer(answer)}" for status, answer in operation.get("responses", {}).items()
    )
    return f"{heading}<p>{html.escape(operation.get('description', ''))}</p>{_table(rows)}<p>{answers}</p>"


def _answer(answer: Mapping[str, Any]) -> str:
    kinds = [_type(kind["schema"]) for kind in answer.get("content", {}).values() if kind.get("schema")]
    return ", ".join(kinds) or html.escape(answer["description"])


def _schemas(description: Mapping[str, Any]) -> Iterator[str]:
    yield "<h2>What goes over the wire</h2>"
    for name, schema in sorted(description["components"]["schemas"].items()):
        required = schema.get("required", ())
        rows = [
            (field, "" if field in required else "optional", _type(entry), entry.get("description", ""))
            for field, entry in schema.get("properties", {}).items()
        ]
        text = html.escape(schema.get("description", ""))
        yield f'<h3 id="{name}"><code>{name}</code></h3><p>{text}</p>{_table(rows)}'


def _type(schema: Mapping[str, Any]) -> str:
    """Return a type in a few words, with a link to what it names."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f'<a href="#{name}">{name}</a>'
    if "anyOf" in schema:
        return " or ".join(_type(choice) for choice in schema["anyOf"])
    if schema.get("type") == "array":
        return f"list of {_type(schema.get('items', {}))}"
    if isinstance(schema.get("additionalProperties"), Mapping):
        return f"object of {_type(schema['additionalProperties'])}"
    return html.escape(schema.get("format") or schema.get("type") or "anything")


def _table(rows: list[tuple[str, str, str, str]]) -> str:
    cells = "".join(
        f"<tr><td><code>{html.escape(name)}</code><td>{place}<td>{kind}<td>{html.escape(text)}"
        for name, place, kind, text in rows
    )
    return f"<table>{cells}</table>" if cells else ""
