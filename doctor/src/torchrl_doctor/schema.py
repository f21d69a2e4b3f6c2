"""The form of the JSON document, as JSON Schema (draft 2020-12)."""

from __future__ import annotations

SCHEMA_VERSION = "1.0"


def texts(description):
    return {"type": "array", "items": {"type": "string"}, "description": description}


def text_or_null(description):
    return {"type": ["string", "null"], "description": description}


FINDING = {
    "type": "object",
    "properties": {
        "check": {"type": "string", "description": "name of the check and of its page"},
        "title": {"type": "string", "description": "the symptom in a reader's words"},
        "verdict": {"enum": ["applies", "check failed", "cannot decide", "clear"]},
        "effect": {"enum": ["silent", "loud", None], "description": "whether an error is raised"},
        "evidence": {"type": "string", "description": "what was seen in the objects, or why not"},
        "cause": text_or_null("of a symptom that is there, with code in backticks"),
        "fix": text_or_null("the smallest one for it, with code in backticks"),
        "code": text_or_null("the fix as code with names and values of these objects"),
        "page": text_or_null("address; relative to the manual where its address is unknown"),
        "follows_from": text_or_null("the check whose fix takes this symptom away as well"),
    },
    "required": [
        "check",
        "title",
        "verdict",
        "effect",
        "evidence",
        "cause",
        "fix",
        "code",
        "page",
        "follows_from",
    ],
    "additionalProperties": False,
}


SAVING = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "title": {"type": "string", "description": "what costs time or memory, and the knob"},
        "evidence": {"type": "string"},
        "page": {"type": "string", "description": "where the record is"},
    },
    "required": ["name", "title", "evidence", "page"],
    "additionalProperties": False,
}


ERROR = {
    "type": ["object", "null"],
    "description": "what make raised",
    "properties": {"type": {"type": "string"}, "message": {"type": "string"}},
    "required": ["type", "message"],
}


# Within one major version members are added, and none is taken away or changes its meaning.
SCHEMA = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "title": "A report of torchrl-doctor",
    "type": "object",
    "properties": {
        "schema": {"const": SCHEMA_VERSION},
        "doctor": {"type": "string", "description": "version of torchrl-doctor"},
        "findings": {
            "type": "array",
            "items": FINDING,
            "description": "roots first, each with what follows from it; then other verdicts",
        },
        "savings": {
            "type": "array",
            "items": SAVING,
            "description": "what certainly costs time or memory; none of it is a symptom",
        },
        "notes": texts("what could not be looked at, and why"),
        "lacking": {
            "type": "object",
            "additionalProperties": texts("arguments that the check needs"),
        },
        "unconcerned": texts("checks that do not concern these objects"),
        "versions": {"type": "object", "additionalProperties": {"type": ["string", "null"]}},
        "error": ERROR,
        "status": {"type": "integer", "description": "exit status, on the command line"},
        "meaning": {"type": "string", "description": "of the exit status"},
    },
    "required": [
        "schema",
        "doctor",
        "findings",
        "savings",
        "notes",
        "lacking",
        "unconcerned",
        "versions",
    ],
}
