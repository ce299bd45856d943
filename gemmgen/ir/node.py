"""The base of every spec and plan node: frozen, strict pydantic data that round-trips through JSON.

Knows pydantic and nothing of ours.
"""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, SerializerFunctionWrapHandler, ValidationError, model_serializer

Name = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$", max_length=200)]
"""An identifier that is legal in Python, CUDA and file names alike."""


class Node(BaseModel):
    """Immutable data with no unknown fields and no coercion."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    @model_serializer(mode="wrap")
    def _without_defaults(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """A field that was left at its default is not written, so that a new one changes no stored spec."""
        fields = type(self).model_fields
        return {
            name: value
            for name, value in handler(self).items()
            if name == "kind" or fields[name].is_required() or getattr(self, name) != fields[name].default
        }

    def to_json(self) -> str:
        """Indented JSON with a final newline; ``from_json`` gives an equal node back."""
        return self.model_dump_json(indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """The node that ``to_json`` wrote; raises ``pydantic.ValidationError`` on anything else."""
        return cls.model_validate_json(text)

    def replace(self, **changes: Any) -> Self:
        """A validated copy with some fields changed (pydantic's own ``model_copy`` would skip validation)."""
        fields = {name: getattr(self, name) for name in type(self).model_fields}
        return type(self)(**{**fields, **changes})


def said(error: ValueError) -> str:
    """The sentence of a node that refused its fields, without what pydantic puts around it."""
    if not isinstance(error, ValidationError):
        return str(error)
    return "; ".join(each["msg"].removeprefix("Value error, ") for each in error.errors(include_url=False))
