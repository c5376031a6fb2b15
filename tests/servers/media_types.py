"""Loaded by schemathesis: media types that it does not know, and how their bodies are sent."""

import schemathesis

schemathesis.serializer.alias("application/vnd.safetensors", "application/octet-stream")
