"""Grammars that an answer must follow: read, checked, matched as text comes, and ended as soon as they allow. Pure."""

from __future__ import annotations

from .matcher import Grammar, Matcher, compile_grammar
from .schema import schema_grammar

__all__ = ["Grammar", "Matcher", "compile_grammar", "schema_grammar"]
